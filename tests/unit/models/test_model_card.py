from __future__ import annotations

import pytest

from prime_train.models.read.model_files import front_matter


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("---\nlicense: apache-2.0\n---\n# A model", {"license": "apache-2.0"}),
        ("\ufeff---\nlicense: 'mit' # free\nother: x\n---\n", {"license": "mit"}),
        (
            "---\nlicense:\n- llama3.2\n- mit\npipeline_tag: text-generation\n---\n",
            {"license": "llama3.2", "pipeline_tag": "text-generation"},
        ),
        ("---\nlicense: [mit, apache-2.0]\n---\n", {"license": "mit"}),
        (
            "---\nlicense: other\nlicense_name: mine\nlicense_link: LICENSE\n---",
            {"license": "other", "license_name": "mine", "license_link": "LICENSE"},
        ),
        ("# no front matter\nlicense: mit\n", {}),
        ("---\nlicense: mit\n", {}),
        ("", {}),
    ],
)
def test_what_stands_in_the_front_matter(text: str, found: dict[str, str]) -> None:
    assert front_matter(text) == found
