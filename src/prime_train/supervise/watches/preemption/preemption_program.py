"""Run as a program: asks the metadata server for a notice, and writes each answer as one JSON object to a line.

python preemption_program.py CLOUD URL INTERVAL_S
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

from prime_train.core.http import HttpBounds, HttpRequest, NoReplyError, send
from prime_train.supervise.watches.preemption import judge
from prime_train.supervise.watches.sample_lines import serve

_LIMIT_S = 5.0
_FIRST_LIMIT_S = 150.0  # Azure takes up to two minutes for the first answer, which enables the service
_TOKEN_S = 21600  # the longest life of a token of AWS
_CHANGE_S = 60  # for one request to GCP that waits for a change
_MOST_BYTES = 2**20


class _Reply(NamedTuple):
    """An answer. `served_s`: the server's clock, else that of this machine. Without one, `status` is 0."""

    status: int
    body: str
    served_s: float
    is_google: bool = False


class _Server:
    """Keeps what the next question needs: the token of AWS, the last answer of GCP, the machine's name at Azure."""

    def __init__(self, cloud: str, url: str) -> None:
        self._ask_cloud = {"aws": self._ask_aws, "gcp": self._ask_gcp, "azure": self._ask_azure}[cloud]
        self._url = url
        self._token = ""
        self._etag = ""
        self._machine: str | None = None
        self._answered = False

    def sample(self) -> dict[str, Any]:
        """One look, as watch.Sample reads it."""
        found, problem = self._ask_cloud()
        if found == "unreadable":
            return {"stamp_s": time.monotonic(), "notice": None, "problem": problem or "its answer cannot be read"}
        return {"stamp_s": time.monotonic(), "notice": found, "problem": problem}

    def _ask_aws(self) -> tuple[judge.Read, str]:
        """IMDSv2: each question carries a token, which is asked for once in six hours and after a 401."""
        if not self._token:
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
            reply = self._ask("PUT", "/latest/api/token", headers)
            if reply.status != 200:
                return None, _describe(reply)
            self._token = reply.body.strip()
        headers = {"X-aws-ec2-metadata-token": self._token}
        reply = self._ask("GET", "/latest/meta-data/spot/instance-action", headers)
        if reply.status == 401:
            self._token = ""
            return None, "the token is not valid any more"
        if reply.status not in (200, 404):
            return None, _describe(reply)
        found = judge.read_aws_action(reply.status, reply.body, reply.served_s)
        if found is not None:
            return found, ""
        hint = self._ask("GET", "/latest/meta-data/events/recommendations/rebalance", headers)
        return (judge.read_aws_rebalance(hint.status, hint.body), "") if hint.status == 200 else (None, "")

    def _ask_gcp(self) -> tuple[judge.Read, str]:
        """The first question is answered at once; each later one when the value changes, or after a minute."""
        path = "/computeMetadata/v1/instance/preempted"
        if self._etag:
            path += f"?wait_for_change=true&timeout_sec={_CHANGE_S}&last_etag={self._etag}"
        reply = self._ask("GET", path, {"Metadata-Flavor": "Google"}, _CHANGE_S + _LIMIT_S if self._etag else _LIMIT_S)
        if reply.status != 200:
            self._etag = ""
            return None, _describe(reply)
        if not reply.is_google:  # some other program answers at that address
            self._etag = ""
            return None, "the server is not Google's"
        return judge.read_gcp_preempted(reply.status, reply.body), ""

    def _ask_azure(self) -> tuple[judge.Read, str]:
        headers = {"Metadata": "true"}
        if self._machine is None:
            named = self._ask("GET", "/metadata/instance/compute/name?api-version=2021-02-01&format=text", headers)
            if named.status == 0:
                return None, _describe(named)
            self._machine = named.body.strip() if named.status == 200 else ""
        limit_s = _LIMIT_S if self._answered else _FIRST_LIMIT_S
        reply = self._ask("GET", "/metadata/scheduledevents?api-version=2020-07-01", headers, limit_s)
        if reply.status != 200:
            return None, _describe(reply)
        self._answered = True
        return judge.read_azure_events(reply.status, reply.body, reply.served_s, self._machine), ""

    def _ask(self, method: str, path: str, headers: dict[str, str], limit_s: float = _LIMIT_S) -> _Reply:
        try:
            found = send(HttpRequest(method, self._url + path, headers), HttpBounds(limit_s, limit_s, _MOST_BYTES))
        except NoReplyError as error:
            return _Reply(0, error.detail, 0.0)
        if etag := found.headers.get("etag"):
            self._etag = "".join(character for character in etag if character.isalnum())[:64]
        served_s = judge.read_http_date(found.headers.get("date", ""))
        is_google = found.headers.get("metadata-flavor") == "Google"
        body = found.body.decode("utf-8", "replace")
        return _Reply(found.status, body, time.time() if served_s is None else served_s, is_google)


def _describe(reply: _Reply) -> str:
    return f"it answers with status {reply.status}" if reply.status else reply.body


if __name__ == "__main__":
    serve(_Server(sys.argv[1], sys.argv[2]).sample, float(sys.argv[3]))
