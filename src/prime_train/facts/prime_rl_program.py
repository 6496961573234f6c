"""Program for an interpreter with prime-rl: prints every legal key of its configs as JSON rows.

With the argument "ask" it reads {"root": ..., "values": ...} from stdin instead, and prints what the root's class
refuses in these values.

Walks the pydantic models of the root configs. Builds none of them to find keys, and reads no file. A row is one key:
its dotted path ("[]" marks an array of tables, "*" any name), type, default, bounds, aliases, and when it applies in
a union.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import sys
import types
import typing

# Root -> the places of its class, those of the latest prime-rl release first.
ROOTS = {
    "rl": ("prime_rl.configs.rl:RLConfig", "prime_rl.rl_config:RLConfig", "prime_rl.rl:RLConfig"),
    "sft": (
        "prime_rl.configs.sft:SFTConfig",
        "prime_rl.configs.sft:SFTTrainerConfig",
        "prime_rl.trainer.sft.config:SFTTrainerConfig",
    ),
    "trainer": (
        "prime_rl.configs.trainer:TrainerConfig",
        "prime_rl.configs.trainer:RLTrainerConfig",
        "prime_rl.trainer.rl.config:RLTrainerConfig",
    ),
    "orchestrator": (
        "prime_rl.configs.orchestrator:OrchestratorConfig",
        "prime_rl.orchestrator.config:OrchestratorConfig",
    ),
    "inference": ("prime_rl.configs.inference:InferenceConfig", "prime_rl.inference.config:InferenceConfig"),
    "env-server": ("prime_rl.configs.env_server:EnvServerConfig",),
    "evals": ("prime_rl.configs.eval:EvalConfig", "prime_rl.configs.evals:EvalsConfig"),
    "eval": ("prime_rl.eval.config:OfflineEvalConfig",),
    "synthesize": ("prime_rl.synthesize.config:SynthesizeConfig",),
}
# Every prime-rl has these. The others came or went between its generations.
REQUIRED = ("rl", "sft", "trainer", "orchestrator", "inference")
_MAX_CHARS = 300  # of the message of an exception
_BOUNDS = ("ge", "gt", "le", "lt", "min_length", "max_length")


def read_keys() -> dict[str, object]:
    """{"version": ..., "rows": [...], "faults": {root: why its keys cannot be read}}, or {"fault": why}."""
    if importlib.util.find_spec("prime_rl") is None:
        return {"fault": "prime-rl is not installed"}
    rows: list[dict[str, object]] = []
    faults: dict[str, str] = {}
    for root in ROOTS:
        found = find_class(root, faults)
        if found is not None:
            rows += RootWalk(root).rows(found)
    return {"version": _version(), "rows": rows, "faults": faults}


def ask(root: str, values: dict[str, object]) -> dict[str, object]:
    """{"version": ..., "refusals": [{"place": [...], "message": ...}]}, or {"fault": why}."""
    faults: dict[str, str] = {}
    model = find_class(root, faults)
    if model is None:
        return {"fault": f"prime-rl has no config class for {root}" + (f": {faults[root]}" if root in faults else "")}
    try:
        model.model_validate(values)
    except Exception as error:  # a validator may raise any exception, and each of them ends prime-rl
        listed = getattr(error, "errors", None)
        if listed is None:
            return {"version": _version(), "refusals": [{"place": [], "message": f"{type(error).__name__}: {error}"}]}
        found = listed(include_url=False, include_context=False, include_input=False)
        refusals = [{"place": list(one["loc"]), "message": one["msg"]} for one in found]
        return {"version": _version(), "refusals": refusals}
    return {"version": _version(), "refusals": []}


def _version() -> str:
    for name in ("prime-rl", "prime-rl-configs"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def find_class(root: str, faults: dict[str, str]) -> typing.Any:
    """The class of a root, None without one. Why it may be incomplete or is missing is then in `faults`.

    A root that this prime-rl may lack has no fault if none of its modules is there.
    """
    tried: list[str] = []
    found, is_broken, is_renamed = None, False, False
    for place in ROOTS.get(root, ()):
        path, _, name = place.partition(":")
        try:
            module = importlib.import_module(path)
        except Exception as error:  # a module may raise any exception
            tried.append(f"{path}: {type(error).__name__}: {str(error)[:_MAX_CHARS]}")
            is_absent = isinstance(error, ModuleNotFoundError) and f"{path}.".startswith(f"{error.name}.")
            is_broken |= not is_absent
            continue
        found = getattr(module, name, None)
        if found is not None:
            break
        is_renamed = True
        tried.append(f"{path}: AttributeError: it has no {name}")
    if is_broken or (found is None and (is_renamed or root in REQUIRED)):
        faults[root] = "; ".join(dict.fromkeys(tried))
    return found


class RootWalk:
    """The rows of one root. A path in several members of a union is one row."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.found: dict[str, dict[str, typing.Any]] = {}

    def rows(self, model: typing.Any) -> list[dict[str, object]]:
        self._model(model, "", [], ())
        return list(self.found.values())

    def _model(self, model: typing.Any, prefix: str, when: list[str], around: tuple[typing.Any, ...]) -> None:
        for name, field in model.model_fields.items():
            key, aliases = _names(name, field, model)
            self._field(model, prefix + key, (field, aliases), when, (*around, model))
        if model.model_config.get("extra") == "allow":
            row = self._row(f"{prefix}*", "any (extra=allow)", model, [])
            row["open"] = True

    def _field(
        self,
        model: typing.Any,
        path: str,
        described: tuple[typing.Any, list[str]],
        when: list[str],
        around: tuple[typing.Any, ...],
    ) -> None:
        field, aliases = described
        kind, members, tag = _kind(field.annotation)
        tag = field.discriminator if isinstance(field.discriminator, str) else tag
        row = self._row(path, _text(field.annotation), model, when)
        if "default" not in row:
            row.update(required=field.is_required(), default=_default(field), aliases=aliases)
            row["constraints"] = _constraints(field)
        elif row["default"] != _default(field):
            row.setdefault("default_by_class", {})[model.__name__] = _default(field)
        if _is_map(field.annotation) and not members:
            row["open"] = True
        if not members:
            return
        row["section"] = True
        if any(member in around for member in members):  # a model that contains itself accepts any key
            row["open"] = True
            return
        if tag is None and len(members) > 1:
            tag = _common_tag(members)
        if tag is not None and len(members) > 1:
            row["discriminator"] = tag
        below = path + {"table": ".", "array": "[].", "map": ".*."}[kind]
        for member in members:
            values = _literals(member, tag) if tag is not None and len(members) > 1 else []
            inner = [f"{below}{tag}={value}" for value in values] or when
            self._model(member, below, inner, around)

    def _row(self, path: str, text: str, model: typing.Any, when: list[str]) -> dict[str, typing.Any]:
        row = self.found.setdefault(path, {"root": self.root, "path": path, "type": text, "in_class": []})
        if text not in row["type"].split(" | ") and text != row["type"]:
            row["type"] = f"{row['type']} | {text}"
        row["in_class"] += [] if model.__name__ in row["in_class"] else [model.__name__]
        if when:
            row["only_when"] = [
                *row.get("only_when", []),
                *(one for one in when if one not in row.get("only_when", [])),
            ]
        return row


# --- what a field is ------------------------------------------------------------------------------


def _names(name: str, field: typing.Any, model: typing.Any) -> tuple[str, list[str]]:
    """(the key, its other names). Beside an alias pydantic accepts the field's own name only with populate_by_name."""
    alias = field.validation_alias or field.alias
    choices = getattr(alias, "choices", None) or ([alias] if alias else [])
    known = [choice for choice in choices if isinstance(choice, str)]
    by_name = model.model_config.get("populate_by_name") or model.model_config.get("validate_by_name")
    if not known or by_name or name in known:
        return name, [other for other in known if other != name]
    return known[0], known[1:]


def _bare(annotation: typing.Any) -> typing.Any:
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    return annotation


def _parts(annotation: typing.Any) -> list[typing.Any]:
    """The members of a union, or the single type."""
    bare = _bare(annotation)
    if typing.get_origin(bare) in (typing.Union, types.UnionType):
        return [part for argument in typing.get_args(bare) for part in _parts(argument)]
    return [bare]


def _tag(annotation: typing.Any) -> str | None:
    """The discriminator in an Annotated, of the union itself or of the items of a list of unions."""
    while typing.get_origin(annotation) is typing.Annotated:
        inner, *notes = typing.get_args(annotation)
        for note in notes:
            discriminator = getattr(note, "discriminator", None)
            if isinstance(discriminator, str):
                return discriminator
        annotation = inner
    for argument in typing.get_args(annotation):
        found = _tag(argument) if typing.get_origin(argument) else None
        if found is not None:
            return found
    return None


def _is_model(kind: typing.Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_fields")


def _kind(annotation: typing.Any) -> tuple[str, list[typing.Any], str | None]:
    """("table", "array" or "map"; the models in it; its discriminator)."""
    for part in _parts(annotation):
        origin, arguments = typing.get_origin(part), typing.get_args(part)
        if _is_model(part):
            models = [member for member in _parts(annotation) if _is_model(member)]
            return "table", models, _tag(annotation)
        if origin in (list, tuple, set, dict) and arguments:
            is_map = origin is dict
            models = [member for member in _parts(arguments[1 if is_map else 0]) if _is_model(member)]
            if models:
                return "map" if is_map else "array", models, _tag(annotation)
    return "table", [], None


def _is_map(annotation: typing.Any) -> bool:
    return any(part is dict or typing.get_origin(part) is dict for part in _parts(annotation))


def _text(annotation: typing.Any) -> str:
    """The type as Python writes it: `int | None`, `list[str]`, `Literal['a', 'b']`."""
    return " | ".join(dict.fromkeys(_part_text(part) for part in _parts(annotation)))


def _part_text(part: typing.Any) -> str:
    origin, arguments = typing.get_origin(part), typing.get_args(part)
    if part is None or part is type(None):
        return "None"
    if origin is typing.Literal:
        return f"Literal[{', '.join(repr(value) for value in arguments)}]"
    if origin is not None:
        inner = ", ".join(_text(argument) for argument in arguments if argument is not Ellipsis)
        name = {tuple: "list", set: "list"}.get(origin, origin).__name__
        return f"{name}[{inner}]" if inner else str(name)
    return str(getattr(part, "__name__", part))


def _default(field: typing.Any) -> object:
    if field.is_required():
        return None
    if field.default_factory is not None:
        return f"<factory:{getattr(field.default_factory, '__name__', 'call')}>"
    default = field.default
    if _is_model(type(default)):
        return {"__class__": type(default).__name__}
    return default if default is None or isinstance(default, bool | int | float | str | list | dict) else str(default)


def _constraints(field: typing.Any) -> str | None:
    """The bounds as "ge=0, lt=1", from the field and from an Annotated inside an optional."""
    notes = list(field.metadata)
    bare = field.annotation
    for argument in typing.get_args(bare):
        if typing.get_origin(argument) is typing.Annotated:
            notes += typing.get_args(argument)[1:]
    found = []
    for bound in [inner for note in notes for inner in (*getattr(note, "metadata", ()), note)]:
        found += [f"{name}={value}" for name in _BOUNDS if (value := getattr(bound, name, None)) is not None]
    return ", ".join(dict.fromkeys(found)) or None


def _literals(model: typing.Any, tag: str | None) -> list[object]:
    """The discriminator values of this member."""
    if tag is None or tag not in model.model_fields:
        return []
    return [value for part in _parts(model.model_fields[tag].annotation) for value in typing.get_args(part)]


def _common_tag(members: list[typing.Any]) -> str | None:
    """A key with different literals in every member, for a union without a discriminator."""
    for name in members[0].model_fields:
        values = [_literals(member, name) for member in members]
        flat = [str(value) for literals in values for value in literals]
        if all(values) and len(set(flat)) == len(flat):
            return str(name)
    return None


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: a module in it must not stand in for a package
    answer, sys.stdout = sys.stdout, sys.stderr  # modules may print to stdout at their import
    if sys.argv[1:] == ["ask"]:
        request = json.load(sys.stdin)
        print(json.dumps(ask(request["root"], request["values"]), default=str), file=answer)
    else:
        print(json.dumps(read_keys(), default=str), file=answer)
