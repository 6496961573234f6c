"""The cause class of an exception that no signature knows, by its type, its module and its place. Pure."""

from __future__ import annotations

import re

from prime_train.diagnose.tracebacks import Raised

# The first pattern that finds the dotted name or the message decides. Sources: the exception hierarchies of Python
# 3.12, torch 2.13, jaxlib, pyarrow 20, datasets 4, huggingface_hub 1.0, httpx, aiohttp, botocore, google-api-core.
_BY_NAME = tuple(
    (re.compile(pattern), cause_class)
    for pattern, cause_class in (
        (r"(?:^|\.)(?:KeyboardInterrupt|SignalException|SystemExit)$", "signal"),
        (r"OutOfMemory|(?:^|\.)MemoryError$|OOM(?:Error|Exception)?$|OutOfResources$", "oom"),
        (r"Unauthorized|Forbidden|PermissionDenied|Authentic|AuthError|Credential|AccessDenied|GatedRepo|"
        r"LoginError", "auth"),
        (r"(?:^|\.)(?:ModuleNotFoundError|ImportError|PackageNotFoundError|DistributionNotFound|"
        r"VersionConflict)$", "env"),
        (r"(?:^|\.)PermissionError$|CUDADriverError|LibraryNotFound|CompilationError$|MissingCUDA|TritonMissing|"
        r"UnsupportedPython|Missing\w*(?:Dependency|Package|Library)|IncompatibleVersion|RequirementError|"
        r"(?:Backend|Platform)(?:NotAvailable|NotSupported|Unavailable)|CommandNotFound|ExecutableNotFound|"
        r"(?:^|\.)InvalidVersion$", "env"),
        (r"Connect|Timeout|TimedOut|Network|Unreachable|ServerDisconnected|RemoteProtocol|gaierror$|herror$|SSLError|BrokenPipe|"
         r"HTTPError|HTTPStatusError|ServiceUnavailable|RateLimit|TooManyRequests|ClientOSError|ReadError$|ProxyError|"
         r"DistNetworkError|DistStoreError|DistBackendError|Throttl|EndpointError|SlowDown|URLError|zmq\.|grpc\.|"
         r"websocket|IncompleteRead|ChunkedEncoding|ProtocolError|ContentTooShort|ContentLength|TransferEncoding|"
         r"ResponseEnded|ResponseNotRead", "network"),
        (r"^(?:pyarrow|pandas|datasets|polars|webdataset|PIL|cv2|soundfile|av|h5py|lmdb)\.|(?:^|\.)(?:JSONDecodeError|UnicodeDecodeError|"
         r"BadZipFile|BadGzipFile|ParserError|EmptyDataError|SchemaInferenceError|UnidentifiedImageError|DataFilesNotFoundError|"
         r"ArrowInvalid|ArrowTypeError|CastError|DatasetGenerationCastError|LZMAError|_csv\.Error|csv\.Error|"
         r"zlib\.error)$", "data"),
        (r"(?:^|\.)(?:ConfigError|ConfigurationError|ValidationError|ArgumentError|ArgumentTypeError|UsageError|NoSuchOption|BadParameter|"
         r"FileNotFoundError|NotADirectoryError|IsADirectoryError|FileExistsError|InterpolationError|MissingMandatoryValue|"
         r"OmegaConfBaseException|TOMLDecodeError|YAMLError|ScannerError|HFValidationError|NotFoundError)$|"
         r"Config\w*(?:Error|Exception)$|Misconfigur", "config"),
        (r"CheckpointException|SafetensorError|StorageFull|DiskFull|QuotaExceeded", "disk"),
        (r"AcceleratorError|XidError|EccError|DeviceLost|HardwareError", "hardware"),
    )
)  # fmt: skip
_BY_MESSAGE = tuple(
    (re.compile(pattern, re.IGNORECASE), cause_class)
    for pattern, cause_class in (
        (r"out of (?:\w+ )?memory|cannot allocate memory|RESOURCE_EXHAUSTED: .{0,60}(?:memory|HBM)|\bOOM\b", "oom"),
        (r"no space left|disk quota|read-only file system|input/output error|stale file handle|PytorchStreamWriter",
         "disk"),
        (r"permission denied|operation not permitted", "env"),
        (r"\b(?:401|403)\b.{0,40}(?:unauthori[sz]ed|forbidden|client error)|invalid (?:api )?(?:token|key|"
        r"credentials)", "auth"),
        (r"connection (?:refused|reset|closed|aborted|timed out)|timed out|\bsocket timeout\b|name resolution|"
        r"unreachable|"
        r"\b50[234]\b", "network"),
        (r"cuda error: (?:uncorrectable|unspecified launch|hardware)|nvlink|xid", "hardware"),
        (r"not installed|installation is (?:broken|missing)|no module named|undefined symbol|"
         r"cannot open shared object|^Failed to import \S+ because of|requires? .{1,60} to be installed|"
         r"please install|pip install|incompatible version|version conflict|requires (?:python|cuda|torch)\b|"
         r"DLL load failed|\[WinError (?:5|32|126|127|193)\]|cannot load (?:shared )?library|"
         r"failed to load \S{0,80}\.(?:so|dll|dylib)|\.so[.\d]*: (?:cannot|undefined|version)|"
         r"GLIBC|libcuda|libnccl|nvcc|\bdriver\b.{0,60}(?:fail|old|version|insufficient|not found|initiali)|"
         r"compute capability|\brequires? (?:SM|sm_|a GPU with|GPUs? with|CUDA|ROCm|triton|cuDNN|Linux)|"
         r"not (?:compiled|built) with|no kernel image|built for a different|command not found|"
         r"not (?:supported|available|implemented) (?:on|for|in) (?:this |your )?(?:platform|system|Windows|macOS|GPU|"
         r"device|CUDA|OS|Python)|\bversion\b.{0,40}(?:too old|is required|not supported|mismatch|incompatible)|"
         r"too old\b|(?:upgrade|update) (?:your |to )|minimum (?:required )?version|"
         r"requires the \S+ (?:library|package)|not found in your environment", "env"),
        (r"(?:not|n't) (?:divide|divisible)|must be (?:one of|divisible|positive|greater|less|between|set|"
        r"specified|provided|a multiple)|"
        r"is not (?:a )?(?:valid|supported)|"
         r"unsupported (?:value|option|model)|invalid (?:value|choice|argument|config|option)|unknown (?:option|"
         r"key|argument|config|model)|"
         r"unrecognized|missing required (?:argument|key|option|config)|mutually exclusive|can(?:not|"
         r"'t) be (?:used|set|combined) (?:with|together)|"
         r"unexpected keyword argument|does not (?:exist|support)|is required\b|should be (?:one of|greater|less|"
         r"positive|a multiple)", "config"),
        (r"\b(?:dataset|column|corrupt\w*|truncated|malformed|decode|sample|jsonl?|parquet|shard|row|record)\b.{0,80}"
         r"(?:empty|missing|invalid|not found|fail|error|mismatch|corrupt|unexpected)|corrupt|truncated", "data"),
    )
)  # fmt: skip
_BUG = re.compile(
    r"(?:Type|Attribute|Name|UnboundLocal|Index|Key|ZeroDivision|Assertion|NotImplemented|Recursion|Syntax|"
    r"Indentation|Tab|Overflow|FloatingPoint|Lookup|Arithmetic|Pickling|Unpickling|InvalidState|"
    r"UnicodeEncode|Runtime)Error|StopIteration|StopAsyncIteration|BrokenProcessPool"
)
_VARIABLE = re.compile(r"'[A-Z][A-Z0-9_]{2,}'$")  # of the environment
# What Python and numpy report when code handles a value wrongly.
_BROKEN_VALUE = re.compile(
    r"not enough values|too many values|invalid literal for|could not (?:convert|broadcast)|broadcast|"
    r"math domain|setting an array|"
    r"shapes? |dimension|is not in list|substring not found|I/O operation on closed|ambiguous|NaN|embedded null"
)
_CONFIG_OF_LIBRARY = frozenset(
    {"ValueError", "TypeError", "KeyError", "AssertionError", "NotImplementedError", "AttributeError"}
)
_CONFIG_PLACE = re.compile(r"(?:config|configuration|args|arguments|argparser|hparams|options|settings|schema)\w*\.py$")
_DATA_PLACE = re.compile(
    r"(?:data|dataset|datasets|dataloader|data_loader|collat\w*|preprocess\w*|tokeniz\w*|parquet|jsonl?)(?:_\w+)?\.py$|/(?:datasets|pyarrow|pandas)/"
)


def classify_exception(raised: Raised) -> str:
    """The cause class of an exception; "unknown" where its type reveals nothing."""
    name = raised.name.partition("(")[0]
    for pattern, cause_class in _BY_NAME:
        if pattern.search(name):
            return _refine(cause_class, raised)
    if re.search(r"(?:^|\.)(?:OSError|IOError)$", name) and re.match(r"\[Errno 22\]", raised.message):
        return "disk"
    if raised.name == "KeyError" and _VARIABLE.match(raised.message):
        return "config"
    by_message = classify_message(raised.message)
    if by_message != "unknown":
        return by_message
    last = name.rpartition(".")[2]
    if last in ("OSError", "IOError"):
        return "disk"
    place = raised.frames[-1].file if raised.frames else ""
    if _DATA_PLACE.search(place) and last in ("ValueError", "KeyError", "IndexError", "TypeError"):
        return "data"
    if _CONFIG_PLACE.search(place) and last in _CONFIG_OF_LIBRARY:
        return "config"
    if _BUG.fullmatch(last):
        return "bug"
    if last == "ValueError":
        return "bug" if _BROKEN_VALUE.search(raised.message) else "config"
    return "unknown"


def classify_message(message: str) -> str:
    """The cause class by the words of an error; else "unknown"."""
    found = (cause_class for pattern, cause_class in _BY_MESSAGE if pattern.search(message[:500]))
    return next(found, "unknown")


def _refine(cause_class: str, raised: Raised) -> str:
    """A request that was refused is a matter of access, not of the network."""
    if cause_class == "network" and re.search(r"\b40[13]\b|Unauthorized|Forbidden", raised.message[:500]):
        return "auth"
    if cause_class == "network" and re.search(r"\b404\b|Not Found", raised.message[:500]):
        return "config"
    return cause_class
