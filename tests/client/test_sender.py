"""What is retried, when, and what a caller learns if retrying does not help."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from mrecordlog_async import LogFailedError, LogFullError, QueueNotFoundError, RecordLogError
from mrecordlog_async.client import OutcomeUnknownError, RecordLogClient, ServiceError, ServiceUnreachableError
from mrecordlog_async.protocol.attempts import Attempts, Repeat, retry_after
from mrecordlog_async.protocol.responses import Reply
from tests.client.faces import Face, faces, outcome
from tests.client.scripted import DROP, REPEATED, Scripted, Step, problem, scripted
from tests.served import Served
from tests.serving import free_port

IN_PAST = problem(409, "position_in_past", queue="q", position=0, next_position=1)


@faces
@pytest.mark.parametrize("status", [408, 429, 503, 507])
async def test_what_may_pass_is_tried_again(face: Face, status: int) -> None:
    """Temporary refusals of the service, even of an append without position: nothing was stored."""
    async with scripted([problem(status, "later")] * 3) as server, face(server.url) as client:
        assert await client.append_record("q", None, b"a") == 0
        assert len(server.requests) == 4


@pytest.mark.parametrize("status", [500, 501, 502, 503, 504, 507, 520, 524])
async def test_what_a_proxy_says_while_the_service_restarts_is_tried_again(status: int) -> None:
    """But not for an append without position: the proxy may have forwarded it."""
    step = Step(status, b"<html>upstream")
    async with scripted([step] * 3) as server, RecordLogClient(server.url) as client:
        assert await client.append_record("q", 0, b"a") == 0
        assert len(server.requests) == 4
    async with scripted([step]) as server, RecordLogClient(server.url) as client:
        with pytest.raises(OutcomeUnknownError):
            await client.append_record("q", None, b"a")
        assert len(server.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 415, 500, 501])
async def test_what_does_not_pass_is_not_tried_again(status: int) -> None:
    """The response would be the same."""
    async with scripted([problem(status, "no")]) as server, RecordLogClient(server.url) as client:
        with pytest.raises(ServiceError, match=str(status)):
            await client.append_record("q", 0, b"a")
        assert len(server.requests) == 1


def two_retries(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time of every call to *server* be over with its third request, whatever the clock says."""
    monkeypatch.setattr(Attempts, "left_seconds", lambda _: 60.0 if len(server.requests) < 3 else 0.0)


async def test_a_failed_log_is_asked_again_until_its_service_was_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor does that within seconds. A record that may have been stored is recognized by its position."""
    steps = [problem(503, "log_failed", written=written) for written in ("unknown", "no")]
    async with scripted([*steps, Step(body=REPEATED)]) as server, RecordLogClient(server.url) as client:
        assert await client.append_new("q", 0, [b"a"]) == 0
        assert len(server.requests) == 3
    async with scripted([], last=steps[1]) as server, RecordLogClient(server.url) as client:
        two_retries(server, monkeypatch)
        with pytest.raises(LogFailedError) as caught:
            await client.append_record("q", None, b"a")
        assert caught.value.written == "no"
        assert len(server.requests) == 3


async def test_a_record_without_a_position_is_not_sent_to_a_failed_log_again() -> None:
    """It may have been stored, and its repeat would be a second record."""
    async with (
        scripted([problem(503, "log_failed", written="unknown")]) as server,
        RecordLogClient(server.url) as client,
    ):
        with pytest.raises(LogFailedError) as caught:
            await client.append_record("q", None, b"a")
        assert (caught.value.written, len(server.requests)) == ("unknown", 1)


async def test_a_full_log_is_the_error_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last refusal is the error."""
    step = problem(507, "disk_full")
    async with scripted([], last=step) as server, RecordLogClient(server.url) as client:
        two_retries(server, monkeypatch)
        with pytest.raises(LogFullError, match="disk"):
            await client.append_record("q", 0, b"a")
        assert len(server.requests) == 3


@pytest.mark.parametrize("refusal", [IN_PAST, problem(404, "queue_not_found", queue="q"), problem(401, "unauthorized")])
async def test_a_refusal_after_a_lost_response_leaves_the_outcome_open(refusal: Step) -> None:
    """The first attempt may have been stored and truncated, in a queue that was deleted since."""
    async with scripted([DROP, refusal]) as server, RecordLogClient(server.url) as client:
        with pytest.raises(RecordLogError) as refused:
            await client.append_record("q", 0, b"a")
        assert type(refused.value) is OutcomeUnknownError
        assert len(server.requests) == 2


async def test_only_an_attempt_after_a_lost_response_counts_as_a_repeat() -> None:
    """Otherwise the same records may be another writer's, or a proxy sent the request twice: the outcome is unknown."""
    same = Step(body=REPEATED)
    async with scripted([DROP, same]) as server, RecordLogClient(server.url) as client:
        assert await client.append_new("q", 0, [b"a"]) == 0
    async with scripted([same]) as server, RecordLogClient(server.url) as client:
        with pytest.raises(OutcomeUnknownError):
            await client.append_new("q", 0, [b"a"])
        assert len(server.requests) == 1
    async with scripted([same]) as server, RecordLogClient(server.url) as client:
        assert await client.append_record("q", 0, b"a") is None


@faces
async def test_an_error_says_whether_the_request_was_sent(face: Face) -> None:
    """After a refused connection the outcome is known, after a lost response it is not. The service is named."""
    async with scripted([], last=DROP) as server, face(server.url, retry_seconds=0.1) as client:
        lost = await outcome(client.append("q", b"a", 0))
    async with face(server.url, retry_seconds=0.1) as client:
        refused = await outcome(client.append("q", b"a", 0))
    for error in (lost, refused):
        assert isinstance(error, ServiceUnreachableError) and error.sent is (error is lost)
        assert server.url in str(error) and ("carried out is unknown" in str(error)) is error.sent


@faces
@pytest.mark.parametrize("host", ["wal.invalid", "127.0.0.1", "[::1]"])
async def test_a_service_that_cannot_be_reached_is_named_with_the_reason(face: Face, host: str) -> None:
    """Nothing was sent."""
    url = f"http://{host}:{free_port()}"
    reason = "the host name cannot be resolved" if host == "wal.invalid" else "connection refused"
    async with face(url, retry_seconds=0.0) as client:
        error = await outcome(client.append("q", b"a"))
    assert (error.address, error.reason, error.sent) == (url, reason, False)


@faces
async def test_an_https_url_of_a_service_without_tls_says_what_to_write(face: Face, served: Served) -> None:
    """The reason is not one of OpenSSL's."""
    async with face(served.url.replace("http:", "https:"), retry_seconds=0.0) as client:
        error = await outcome(client.append("q", b"a"))
    assert isinstance(error, ServiceUnreachableError) and not error.sent
    assert error.reason == "TLS failed: the server responded without TLS; write http:// instead of https://"


async def test_deleting_by_id_is_sent_again_and_spares_a_queue_made_since() -> None:
    """The id is a precondition, so a repeat does no harm; a queue that does not exist any more was deleted."""
    for refusal in ("queue_not_found", "queue_recreated"):
        steps = [DROP, problem(404, refusal, queue="q")]
        async with scripted(steps) as server, RecordLogClient(server.url) as client:
            await client.delete_queue("q", queue_id=7)
            assert [line for line, _ in server.requests] == ["DELETE /v1/queues/q?id=7"] * 2
        async with scripted([problem(404, refusal, queue="q")]) as server, RecordLogClient(server.url) as client:
            with pytest.raises(QueueNotFoundError):
                await client.delete_queue("q", queue_id=7)


# Refusals of a proxy.

NGINX_PAGE = (
    b"<html>\r\n<head><title>%s</title></head>\r\n<body>\r\n<center><h1>%s</h1></center>\r\n<hr><center>nginx/1.22.1"
    b"</center>\r\n</body>\r\n</html>\r\n"
)


@pytest.mark.parametrize(
    "body", [NGINX_PAGE % ((b"413 Request Entity Too Large",) * 2), b'{"message": "too large"}', b""]
)
async def test_a_body_that_a_proxy_refuses_is_said_to_be_refused_by_a_proxy(body: bytes) -> None:
    """The message says what to change, and does not show the page."""
    async with scripted([Step(413, body)]) as server, RecordLogClient(server.url) as client:
        with pytest.raises(ServiceError) as caught:
            await client.append_record("q", None, b"a")
    assert str(caught.value) == (
        "a proxy in front of the service refused the body as too large; send less at once, or raise the limit of the "
        "proxy (nginx: client_max_body_size) (413 unreadable)"
    )


@pytest.mark.parametrize(
    ("status", "body", "shown"),
    [
        (403, NGINX_PAGE % ((b"403 Forbidden",) * 2), "403 Forbidden nginx/1.22.1"),
        (403, b"<style>a {}</style>", "an empty page"),
        (
            404,
            b'{"detail":"Not Found"}',
            '{"detail":"Not Found"}; is the API mounted below a path? then the URL ends with it, as in '
            "http://host:port/wal",
        ),
    ],
)
async def test_a_refusal_that_no_service_wrote_is_not_called_one(status: int, body: bytes, shown: str) -> None:
    """A proxy, or an application that has the log below another path, responds without a problem document."""
    async with scripted([Step(status, body)]) as server, RecordLogClient(server.url) as client:
        with pytest.raises(ServiceError) as caught:
            await client.append_record("q", None, b"a")
    assert (caught.value.code, str(caught.value)) == (
        "unreadable",
        f"another program, such as a proxy, responded instead: {shown} ({status} unreadable)",
    )


# Pauses.


def pauses(attempts: Attempts, at_least_seconds: float) -> list[float]:
    found: list[float] = []
    for _ in range(200):
        attempts.at_least_seconds = at_least_seconds
        pause = attempts.next_pause()
        found += [] if pause is None else [pause]
    return found


def attempts_of(seconds: float) -> Attempts:
    return Attempts("GET /", "http://x", Repeat.FREELY, seconds, seconds, clock=lambda: 0.0)


def test_retry_after_is_a_minimum() -> None:
    """Jitter only makes a pause longer, never shorter than the service requested."""
    slept = pauses(attempts_of(10_000), 4.0)
    assert len(slept) == 200
    assert 4.0 <= min(slept) < max(slept) <= 5.0


def test_the_service_says_how_long_to_wait() -> None:
    """What a refusal asks for is the pause before the next attempt."""
    attempts = attempts_of(10_000)
    attempts.after_refusal(Reply(503, {"Retry-After": "7"}, b'{"type":"urn:mrecordlog:busy","code":"busy"}'))
    assert (attempts.next_pause() or 0.0) >= 7.0


def test_pauses_grow_to_two_seconds() -> None:
    """Pauses double if the service requests none."""
    slept = pauses(attempts_of(10_000), 0.0)
    assert slept[0] <= 0.05
    assert 1.0 <= min(slept[10:]) < max(slept) <= 2.0


def test_a_pause_beyond_the_deadline_is_not_begun() -> None:
    """The caller learns at once that no other attempt fits before the deadline."""
    assert pauses(attempts_of(3), 4.0) == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("4", 4.0), (" 120 ", 120.0), ("", 0.0), ("-1", 0.0), ("nan", 0.0), ("inf", 0.0), ("1e3", 0.0), ("soon", 0.0)]
    + [(f"Fri, 01 Jan {year} 00:00:00 {zone}", 0.0) for year, zone in (("9" * 20, "GMT"), ("2020", "+" + "9" * 20))],
)
def test_seconds_of_retry_after(text: str, seconds: float) -> None:
    """A value that is not a number of seconds is ignored."""
    assert retry_after(Reply(503, {"Retry-After": text}, b"")) == seconds


def test_retry_after_may_be_a_date() -> None:
    """Proxies send dates; a date in the past means no wait."""
    for offset, low, high in ((3_600, 1, 3_600), (-3_600, 0, 0)):
        when = format_datetime(datetime.now(UTC) + timedelta(seconds=offset), usegmt=True)
        assert low <= retry_after(Reply(503, {"Retry-After": when}, b"")) <= high
