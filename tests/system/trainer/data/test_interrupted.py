"""Tokenising in real processes that are killed, and the memory that it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

from prime_train.spec import to_json
from prime_train.trainer.data.corpus import open_corpora
from prime_train.trainer.data.progress import SourceProgress
from prime_train.trainer.data.text_tokenizer import load_tokenizer
from tests.unit.trainer.data.small_runs import files, small_run, text, write_lines

DEADLINE_S = 600.0

# Writes the number of documents before it tokenises them, so that the work that a kill loses is counted too.
TOKENISE = """
    import sys
    from dataclasses import replace
    from pathlib import Path
    from prime_train.spec import from_json
    from prime_train.trainer.data.corpus import open_corpora
    from prime_train.trainer.data.text_tokenizer import load_tokenizer

    run, begun = from_json(Path(sys.argv[1]).read_text()), open(sys.argv[2], "a")
    tokenizer = load_tokenizer(run)

    def encode_batch(texts):
        begun.write(f"{len(texts)}\\n")
        begun.flush()
        return tokenizer.encode_batch(texts)

    open_corpora(run, replace(tokenizer, encode_batch=encode_batch))
"""


def test_a_kill_at_60_percent_loses_at_most_2_percent(tmp_path: Path, cache: Path) -> None:
    count = 3000
    lines = [{"text": text(number, 200)} for number in range(count)]
    run = small_run(files(write_lines(tmp_path / "lines.jsonl", lines)))
    load_tokenizer(run)
    resolved, begun = tmp_path / "resolved.json", tmp_path / "begun"
    resolved.write_text(to_json(run))
    command = [sys.executable, "-c", textwrap.dedent(TOKENISE), str(resolved), str(begun)]
    killed = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + DEADLINE_S
    while (
        sum(SourceProgress(file.parent, "", count, "").total().documents for file in cache.glob("tokens/*/made")) < 1800
    ):
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    killed.kill()
    killed.wait()
    at_the_kill = sum(map(int, begun.read_text().split()))
    assert 1800 <= at_the_kill < count, "it was killed in the middle"
    subprocess.run(command, stderr=subprocess.DEVNULL, check=True)
    tokenised = sum(map(int, begun.read_text().split()))
    assert count <= tokenised <= 1.02 * count
    (opened,) = open_corpora(run, load_tokenizer(run))
    assert (opened.source.made.documents, len(opened.train) + len(opened.held_out)) == (0, count)


# Anonymous memory is what the kernel cannot take back; pages of mapped files are a cache that it drops when others
# need the memory. Source: proc(5), RssAnon. Both files are larger than the 10 MB that `datasets` reads at once.
READ = """
    import sys
    from pathlib import Path
    import numpy as np
    from prime_train.spec import from_json
    from prime_train.trainer.data import corpus
    from prime_train.trainer.data.text_tokenizer import load_tokenizer

    corpus.WHOLE_BYTES = 0
    run = from_json(Path(sys.argv[1]).read_text())
    (opened,) = corpus.open_corpora(run, load_tokenizer(run))
    documents = np.random.default_rng(0).permutation(len(opened.train))
    for start in range(0, 320, 32):
        opened.gather(opened.train[documents[start : start + 32]])
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(int(status["RssAnon"].split()[0]) * 1024)
"""

# Arrow's own allocator returns memory to the kernel some time after it is freed.
_FREES_AT_ONCE = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "0"}


def test_the_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    line = json.dumps({"text": text(0, 600)}) + "\n"
    used = []
    (tmp_path / "words").mkdir()
    write_lines(tmp_path / "words" / "small.jsonl", [{"text": text(number, 30)} for number in range(50)])
    tokenizer = load_tokenizer(small_run(files(tmp_path / "words"))).files[0].parent
    for name, size_bytes in (("small", 2**25), ("large", 3 * 2**25)):
        file = tmp_path / f"{name}.jsonl"
        file.write_text(line * (size_bytes // len(line.encode())))
        run = small_run(files(file))
        resolved = tmp_path / f"{name}.json"
        resolved.write_text(to_json(replace(run, tokenizer=replace(run.tokenizer, path=str(tokenizer)))))
        command = [sys.executable, "-c", textwrap.dedent(READ), str(resolved)]
        done = subprocess.run(command, env=os.environ | _FREES_AT_ONCE, check=True, stdout=subprocess.PIPE, text=True)
        used.append(int(done.stdout))
    assert used[1] - used[0] < 2**24, f"64 MiB more text takes less than 16 MiB more memory: {used}"
