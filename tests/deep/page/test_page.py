"""The page, in a real browser against a real service."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from mrecordlog_async.model import RecoveryProgress
from mrecordlog_async.options import QueueOptions
from tests.page.browser import Browser, browser, missing
from tests.served import serving
from tests.serving import Process

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def service(directory: Path) -> Iterator[Process]:
    with Process(directory) as process:
        yield process


def call(service: Process, method: str, path: str, body: bytes | None = None, token: str = "") -> Any:
    """Send a request as any client would; wait out the recovery."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(service.address + path, body, headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(request, timeout=60) as response:
                return json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 503:
                raise


def append(service: Process, queue: str, body: bytes, token: str = "") -> Any:
    return call(service, "POST", f"/v1/queues/{quote(queue, safe='')}/records?create=1", body, token)


def rows(window: Browser) -> list[list[str]]:
    """Return name, first position, next position and number of records of each row, in the order shown."""
    script = """return [...document.querySelectorAll('#queues tr')]
        .map(row => [...row.cells].map(cell => cell.textContent))
        .map(([name, records, bytes, first, next]) => [name, first, next, records])"""
    found: list[list[str]] = window.run(script)
    return found


def column(window: Browser, name: str) -> None:
    """Sort by a column."""
    window.run(f"document.querySelector('#column-{name} button').click()")


def test_it_shows_live_numbers(window: Browser, service: Process) -> None:
    """Queues appear and change without a reload, with their rates and charts."""
    append(service, "orders", b"one")
    window.open(service.address)
    window.wait_for("the state", lambda: window.text("state") == "open")
    window.wait_for("the queue", lambda: rows(window) == [["orders", "0", "1", "1"]])
    append(service, "orders", b"two")
    append(service, "audit", b"first")
    window.wait_for("more of it", lambda: rows(window)[1:] == [["orders", "0", "2", "2"]])
    window.wait_for("a curve", lambda: window.run("return document.querySelector('#throughput polyline') !== null"))
    assert window.text("queue-count") == "(2)"
    assert "on disk" in window.text("segment-text")
    assert window.errors() == []


def test_it_names_the_queue_that_keeps_segments(window: Browser, directory: Path) -> None:
    """One old record of a quiet queue keeps all later segments: the chart shows it, and a sentence names the queue."""
    with Process(directory, ["--segment-bytes", "65536"]) as service:
        append(service, "audit", b"first")
        for _ in range(12):
            append(service, "orders", bytes(30_000))
        call(service, "POST", "/v1/queues/orders/truncate", b'{"position": 10}')
        window.open(service.address)
        window.wait_for("the sentence", lambda: window.text("pins").startswith("audit alone keeps segments 0"))
        kinds = window.run("return [...document.querySelectorAll('#segments i')].map(cell => cell.className)")
        assert kinds[:2] == ["one", "none"]
        assert kinds[-1] == "one"


def test_one_queue_in_one_segment_keeps_nothing(window: Browser, service: Process) -> None:
    """The segment being written is kept by nobody: strip and sentence agree."""
    append(service, "orders", b"one")
    window.open(service.address)
    window.wait_for("the sentence", lambda: window.text("pins") == "Only the current segment is needed.")


def test_an_empty_log_says_how_to_begin(window: Browser, service: Process) -> None:
    """Without a queue the page shows the commands that create one; with the first queue they disappear."""
    window.open(service.address)
    window.wait_for("the commands", lambda: window.run("return !document.getElementById('empty').hidden"))
    assert f"curl -X PUT {service.address}/v1/queues/orders" in window.text("empty-commands")
    append(service, "orders", b"one")
    window.wait_for("the queue", lambda: window.run("return document.getElementById('empty').hidden"))


def test_the_table_is_sorted_by_any_column_and_rows_stay_under_the_focus(window: Browser, service: Process) -> None:
    """A click sorts; rows that have the focus do not move when numbers change, and arrow keys and Enter work."""
    for queue, records in (("a", 1), ("b", 3), ("c", 2)):
        for _ in range(records):
            append(service, queue, b"x")
    window.open(service.address)
    window.wait_for("the queues", lambda: [row[0] for row in rows(window)] == ["a", "b", "c"])
    column(window, "records")
    assert [row[0] for row in rows(window)] == ["b", "c", "a"]
    assert window.run("return document.getElementById('column-records').ariaSort") == "descending"
    column(window, "records")
    assert [row[0] for row in rows(window)] == ["a", "c", "b"]
    window.run("document.querySelector('#queues tr').focus()")
    for _ in range(5):
        append(service, "a", b"x")
    window.wait_for("the new number", lambda: rows(window)[0] == ["a", "0", "6", "6"])
    press = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: '%s', bubbles: true}))"
    window.run(press % "ArrowDown")
    window.run(press % "Enter")
    assert window.run("return document.getElementById('queue').value") == "c"
    window.wait_for("its records", lambda: window.text("read-note") == "2 records")


def test_every_one_of_many_queues_can_be_found(window: Browser, service: Process) -> None:
    """A page of the list is shown: the next one by name, the largest of all by size, and those with a prefix."""
    for number in range(205):
        call(service, "PUT", f"/v1/queues/q{number:03}")
    append(service, "q204", b"x")
    window.open(service.address)
    window.wait_for("the first page", lambda: [row[0] for row in rows(window)][:1] == ["q000"])
    window.wait_for("the button", lambda: window.run("return !document.getElementById('next').hidden"))
    assert len(rows(window)) == 200
    window.run("document.getElementById('next').click()")
    window.wait_for("the last page", lambda: [row[0] for row in rows(window)] == [f"q{n}" for n in range(200, 205)])
    column(window, "bytes")
    window.wait_for("the largest", lambda: rows(window)[:1] == [["q204", "0", "1", "1"]])
    column(window, "queue")
    window.type("filter", "q10")
    window.wait_for("ten of them", lambda: [row[0] for row in rows(window)] == [f"q{n}" for n in range(100, 110)])


def test_records_are_appended_and_read(window: Browser, service: Process) -> None:
    """The form appends a record as curl would, and shows its position."""
    window.open(service.address)
    window.type("queue", "späße/1")
    window.run("document.getElementById('append-create').checked = true")
    window.type("append-payload", "grüße")
    window.submit("append-form")
    window.wait_for("the answer", lambda: window.text("append-result") == "stored at position 0")
    window.submit("queue-form")
    window.wait_for("the record", lambda: window.text("records").endswith("  grüße"))
    window.type("queue", "x")
    window.submit("queue-form")
    window.wait_for("the refusal", lambda: "does not exist" in window.text("read-note"))


def test_records_are_shown_as_text_json_and_hex(window: Browser, service: Process) -> None:
    """The newest records of the chosen queue are read; JSON is indented, and hex shows every byte."""
    for number in range(30):
        append(service, "orders", b'{"number":%d}' % number)
    append(service, "orders", b"\x00\xffabc")
    window.open(service.address)
    window.wait_for("the queue", lambda: rows(window))
    window.run("document.querySelector('#queues tr').click()")
    window.wait_for("the newest", lambda: window.text("read-note") == "20 records")
    view = "const view = document.getElementById('view'); view.value = '%s'; view.dispatchEvent(new Event('change'))"
    window.run(view % "json")
    assert '"number": 29\n}' in window.text("records")
    window.run(view % "hex")
    assert "000000  00 ff 61 62 63" in window.text("records")
    assert window.text("records").endswith("..abc")


def test_the_newest_records_are_shown_however_large_they_are(window: Browser, service: Process) -> None:
    """Twenty of them do not fit into one response, which has the oldest of what was asked for."""
    for number in range(30):
        append(service, "orders", b"%d " % number * 40_000)
    window.open(service.address)
    window.wait_for("the queue", lambda: rows(window))
    window.run("document.querySelector('#queues tr').click()")
    window.wait_for("the newest", lambda: window.text("read-note") == "20 records")
    positions = [line.split()[0] for line in window.text("records").splitlines()]
    assert positions == [str(number) for number in range(10, 30)]


def test_a_late_response_does_not_replace_records_that_were_read_after_it(window: Browser, service: Process) -> None:
    """They may be of another queue, or of one that is followed meanwhile; nor does a late error."""
    window.open(service.address)
    shown = window.run(
        """
        let arrive, fail;
        const late = attempt(() => new Promise((resolve) => arrive = resolve));
        const failed = attempt(() => new Promise((_, reject) => fail = reject));
        return attempt(async () => [{ position: 1, payload: btoa("new") }])
            .then(() => { arrive([{ position: 0, payload: btoa("old") }]); fail(new Error("late")); })
            .then(() => Promise.all([late, failed]))
            .then(() => [$("records").textContent, $("read-note").textContent]);
        """
    )
    assert shown == ["1  new", "1 record"]
    append(service, "q", b"a")
    window.type("queue", "q")
    window.run("attempt(() => new Promise((resolve) => window.arrive = resolve).finally(() => window.arrived = true))")
    window.run("document.getElementById('follow').click()")
    window.wait_for("the tail", lambda: window.text("read-note") == "waiting for records")
    window.run("window.arrive([{ position: 0, payload: btoa('old') }])")
    window.wait_for("the response", lambda: window.run("return window.arrived"))
    assert (window.text("records"), window.text("read-note")) == ("", "waiting for records")


def test_new_records_are_followed(window: Browser, service: Process) -> None:
    """Follow shows records as they are stored, until it is pressed again."""
    append(service, "orders", b"before")
    window.open(service.address)
    window.type("queue", "orders")
    window.run("document.getElementById('follow').click()")
    window.wait_for("the tail", lambda: window.text("read-note") == "waiting for records")
    window.wait_for("the client", lambda: call(service, "GET", "/v1/stats")["tails"] == 2)
    append(service, "orders", b"after")
    window.wait_for("the record", lambda: window.text("records").endswith("  after"))
    assert "before" not in window.text("records")
    window.run("document.getElementById('follow').click()")
    window.wait_for("the end", lambda: call(service, "GET", "/v1/stats")["tails"] == 1)


def test_nothing_from_a_name_or_a_payload_becomes_markup(window: Browser, service: Process) -> None:
    """Text that looks like a tag or a script is shown as text."""
    append(service, EVIL, EVIL.encode())
    window.open(service.address)
    window.wait_for("the name", lambda: rows(window) and rows(window)[0][0] == EVIL)
    window.run("document.querySelector('#queues tr').click()")
    window.wait_for("the payload", lambda: window.text("records").endswith(f"  {EVIL}"))
    assert window.run("return document.title").endswith("mrecordlog")
    assert window.run("return document.querySelectorAll('main img, main script').length") == 0


def test_it_survives_a_restart_of_the_service(window: Browser, service: Process) -> None:
    """After kill -9 the page says so, retries, and continues with the new process."""
    append(service, "orders", b"one")
    window.open(service.address)
    window.wait_for("the queue", lambda: rows(window))
    service.kill()
    window.wait_for("the loss", lambda: window.text("state") == "unreachable")
    assert window.text("note").startswith("since ")
    assert window.run("return document.body.classList.contains('stale')")
    service.start()
    append(service, "orders", b"two")
    window.wait_for("the next record", lambda: rows(window) == [["orders", "0", "2", "2"]])
    assert window.text("state") == "open"


def test_it_works_with_a_token(window: Browser, directory: Path, tmp_path: Path) -> None:
    """The page itself holds no data; it asks for the token and shows numbers once it has the right one."""
    token_file = tmp_path / "token"
    token_file.write_text("correct-horse-battery-staple-0123456789\n")
    token_file.chmod(0o600)
    with Process(directory, ["--token-file", str(token_file)]) as service:
        append(service, "orders", b"one", token_file.read_text().strip())
        window.open(service.address)
        window.wait_for("the question", lambda: window.text("state") == "token needed")
        assert rows(window) == []
        window.type("token", "wrong")
        window.submit("token-form")
        window.wait_for("the refusal", lambda: "does not accept this token" in window.text("token-note"))
        window.type("token", token_file.read_text().strip())
        window.submit("token-form")
        window.wait_for("the queue", lambda: [row[0] for row in rows(window)] == ["orders"])
        assert window.text("state") == "open"


def test_a_token_may_have_any_letters(window: Browser, directory: Path, tmp_path: Path) -> None:
    """It is sent as UTF-8, as the clients send it; a wrong one is refused, and does not look like a lost connection."""
    token_file = tmp_path / "token"
    token_file.write_text("schlüssel-für-100-€-0123456789\n", encoding="utf-8")
    token_file.chmod(0o600)
    with Process(directory, ["--token-file", str(token_file)]) as service:
        window.open(service.address)
        window.wait_for("the question", lambda: window.text("state") == "token needed")
        window.type("token", "“quoted”")
        window.submit("token-form")
        window.wait_for("the refusal", lambda: "does not accept this token" in window.text("token-note"))
        window.type("token", token_file.read_text(encoding="utf-8").strip())
        window.submit("token-form")
        window.wait_for("the state", lambda: window.text("state") == "open")


def test_the_commands_of_a_queue_are_whole_for_a_shell(window: Browser, service: Process) -> None:
    """A quote in a name ends no argument: the last word of each command with an address is that address."""
    window.open(service.address)
    window.type("queue", "it's (new)")
    words = [shlex.split(line) for line in window.text("commands").splitlines()]
    path = f"{service.address}/v1/queues/it%27s%20(new)"
    assert [one[-1] for one in words if one[0] == "curl"] == [path, f"{path}/records", f"{path}/truncate", path]
    assert words[0][2:] == [f"{service.address}/", "it's (new)", "--follow"]


def test_the_consumers_shown_are_those_of_the_queue_that_is_shown(window: Browser, service: Process) -> None:
    """Even if it was typed in, does not exist, or if the response for an earlier one comes late."""
    for queue in ("orders", "audit"):
        append(service, queue, b"a")
        call(service, "PUT", f"/v1/queues/{queue}/consumers/of-{queue}", b"{}")
    window.open(service.address)
    window.run("selectQueue('orders')")
    window.wait_for("its consumer", lambda: "of-orders" in window.text("consumers"))
    window.run("$('queue').value = ''")
    window.type("queue", "audit")
    assert window.text("consumers") == ""
    window.submit("queue-form")
    window.wait_for("its consumer", lambda: "of-audit" in window.text("consumers"))
    window.run("selectQueue('neither')")
    window.wait_for("the refusal", lambda: "does not exist" in window.text("read-note"))
    assert window.text("consumers") == ""
    shown = window.run(
        """
        $("queue").value = "orders";
        const late = showConsumers();
        $("queue").value = "audit";
        return Promise.all([late, showConsumers()]).then(() => late).then(() => $("consumers").textContent);
        """
    )
    assert "of-audit" in shown
    late = "$('queue').value = 'orders'; const late = showConsumers(); $('queue').value = 'audit'; return late.then("
    assert "of-orders" not in window.run(late + "() => $('consumers').textContent)")


def top_of(window: Browser, element_id: str) -> float:
    """Return how far below the upper edge of the window an element begins."""
    found: float = window.run("return document.getElementById(arguments[0]).getBoundingClientRect().top", element_id)
    return found


@pytest.mark.parametrize("width", [1400, 390])
def test_what_a_click_opens_is_in_sight(window: Browser, service: Process, width: int) -> None:
    """The queue's heading is at the top of the window and has the focus; a button leads back to the row."""
    for number in range(30):
        append(service, f"q{number:02}", b"one")
    window.resize(width, 844, 1.0)
    window.open(service.address)
    window.wait_for("the queues", lambda: len(rows(window)) == 30)
    window.run("[...document.querySelectorAll('#queues tr')].find(row => row.textContent.startsWith('q20')).click()")
    window.wait_for("its record", lambda: window.text("records").endswith("  one"))
    assert window.text("queue-title") == "Queue q20"
    assert 0 <= top_of(window, "queue-title") < 60
    assert window.run("return document.activeElement.id") == "queue-title"
    assert window.run("return document.documentElement.scrollWidth") <= width
    window.run("document.getElementById('back').click()")
    assert window.run("return document.activeElement.textContent").startswith("q20")
    assert 0 < window.run("return document.activeElement.getBoundingClientRect().top") < 844


def test_a_queue_has_an_address(window: Browser, directory: Path) -> None:
    """A link opens it, reloading keeps it, and going back and forth changes it; the title names queue and service."""
    with Process(directory, ["--name", "wal-7"]) as service:
        for queue in ("orders", "a/b ü"):
            append(service, queue, queue.encode())
        window.open("about:blank")
        window.errors()  # of the tests before
        window.open(service.address + "/#queue=a%2Fb+%C3%BC")
        window.wait_for("its record", lambda: window.text("records").endswith("  a/b ü"))
        assert window.run("return document.title") == "a/b ü · wal-7 · mrecordlog"
        assert window.text("service") == "wal-7"
        window.run("document.querySelectorAll('#queues tr')[1].click()")
        window.wait_for("the other one", lambda: window.text("records").endswith("  orders"))
        assert window.run("return location.hash") == "#queue=orders"
        window.run("history.back()")
        window.wait_for("the first one", lambda: window.text("records").endswith("  a/b ü"))
        window.run("location.reload()")
        window.wait_for("it again", lambda: window.text("records").endswith("  a/b ü"))
        address = window.run("return document.querySelector('#queues a').href")
        assert address == service.address + "/#queue=a%2Fb+%C3%BC"
        assert window.errors() == []


def test_a_queue_shows_its_options_and_what_is_used_of_its_limits(window: Browser, service: Process) -> None:
    """So an append that gets 429 is explained by the page."""
    call(service, "PUT", "/v1/queues/orders", b'{"keep": "until_acknowledged", "max_records": 2}')
    append(service, "orders", b"one")
    append(service, "orders", b"two")
    call(service, "PUT", "/v1/queues/clicks", b'{"max_bytes": 1024, "when_full": "drop_oldest"}')
    call(service, "PUT", "/v1/queues/events", b'{"max_age": 3600}')
    call(service, "POST", "/v1/queues/events/seal", b"{}")
    window.open(service.address)
    facts = {
        "orders": ["keeps until acknowledged", "at most 2 records, 100 % used: appends beyond that are refused"],
        "clicks": ["keeps until truncated", "at most 1.0 KiB, 0 % used: then drops the oldest"],
        "events": ["sealed: it accepts no more records", "keeps until truncated", "removes records older than 60 min"],
    }
    for queue, expected in facts.items():
        window.run("selectQueue(arguments[0])", queue)
        assert window.wait_for(queue, partial(facts_of, window, queue))[1:] == expected
    assert window.run("return document.querySelectorAll('#queue-facts .problem').length") == 1


def test_an_option_without_a_sentence_is_shown_by_its_name(window: Browser, service: Process) -> None:
    """A new option is seen on the page before anybody writes a sentence about it."""
    window.open(service.address)
    nothing = {"queue": "q", **asdict(QueueOptions()), "sealed": False}
    summary = {"records": 0, "bytes": 0, "first_position": 0, "next_position": 0, "sealed": False}
    shown = "return facts(arguments[0], arguments[1]).map(one => one[0]).slice(1)"
    assert window.run(shown, summary, nothing) == ["keeps until truncated", "no limits of its own"]
    found = window.run(shown, summary, {**nothing, "max_new_bytes": 2048, "new_option": "yes"})
    assert found == ["keeps until truncated", "max new bytes: 2.0 KiB", "new option: yes"]


def facts_of(window: Browser, queue: str) -> list[str]:
    """Return the sentences about *queue*, once they are those of this one."""
    if window.text("queue-title") != f"Queue {queue}":
        return []
    found: list[str] = window.run(
        "return [...document.querySelectorAll('#queue-facts span')].map(one => one.textContent)"
    )
    return found


def test_all_consumers_are_in_one_list_the_furthest_behind_first(window: Browser, service: Process) -> None:
    """Who is late needs no click; a click on the queue opens it, and a title sorts."""
    for queue, size in (("small", 10), ("large", 1000), ("middle", 100)):
        append(service, queue, bytes(size))
        call(service, "PUT", f"/v1/queues/{queue}/consumers/of-{queue}", b"{}")
    for _ in range(3):
        append(service, "small", b"x")
    window.open(service.address)
    listed = """return [...document.querySelectorAll('#consumer-list tbody tr')].map(row => row.cells[0].textContent)"""
    window.wait_for("the consumers", lambda: window.run(listed) == ["of-large", "of-middle", "of-small"])
    window.run("document.querySelector('#consumer-list th button').click()")  # records waiting
    assert window.run(listed)[0] == "of-small"
    assert window.run("return document.activeElement.textContent") != ""
    window.run("document.querySelector('#consumer-list a').click()")
    window.wait_for("its queue", lambda: window.text("queue-title") == "Queue small")


def test_a_long_name_leaves_the_lag_of_consumers_in_sight(window: Browser, service: Process) -> None:
    """The one name of 255 bytes would push what waits, for all consumers, out of the table."""
    append(service, "q" * 255, b"one")
    call(service, "PUT", f"/v1/queues/{'q' * 255}/consumers/{'c' * 255}", b"{}")
    for width in (1400, 1024):
        window.resize(width, 900, 1.0)
        window.open(service.address)
        window.wait_for("the consumer", lambda: "qqq" in window.text("consumer-list"))
        wide = "const box = document.getElementById('consumer-list'); return box.scrollWidth - box.clientWidth"
        assert window.run(wide) <= 0


def test_one_row_is_a_stop_of_the_tab_key(window: Browser, service: Process) -> None:
    """The arrow keys, Home and End move between rows: with two hundred of them, what follows stays within reach."""
    for number in range(5):
        append(service, f"q{number}", b"one")
    window.open(service.address)
    window.wait_for("the queues", lambda: len(rows(window)) == 5)
    stops = "return [...document.querySelectorAll('#queues tr, #queues a')].filter(one => one.tabIndex === 0).length"
    assert window.run(stops) == 1
    press = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}))"
    window.run("document.querySelector('#queues tr').focus()")
    for key, name in (("ArrowDown", "q1"), ("End", "q4"), ("ArrowUp", "q3"), ("Home", "q0")):
        window.run(press, key)
        assert window.run("return document.activeElement.cells[0].textContent") == name
        assert window.run(stops) == 1
    window.run(press, "Enter")
    window.wait_for("the record", lambda: window.text("records").endswith("  one"))


def test_a_name_that_turns_text_around_is_shown_by_its_numbers(window: Browser, service: Process) -> None:
    """It must not look like another name."""
    append(service, "evil\u202egnp.exe", b"one")
    window.open(service.address)
    window.wait_for("the queue", lambda: rows(window) and rows(window)[0][0] == "evil\\u202egnp.exe")
    window.run("document.querySelector('#queues tr').click()")
    window.wait_for("its record", lambda: window.text("records").endswith("  one"))


def test_a_full_disk_is_said_with_the_consumer_that_holds_most(window: Browser, directory: Path) -> None:
    """The sentence at the top names whom to look for."""
    with Process(directory, ["--disk-bytes", "1MiB", "--segment-bytes", "32KiB"]) as service:
        append(service, "orders", b"first")
        call(service, "PUT", "/v1/queues/orders/consumers/lake", b"{}")
        with pytest.raises(urllib.error.HTTPError, match="429"):
            while True:
                append(service, "orders", bytes(20_000))
        window.open(service.address)
        said = r"\d+ % of the disk limit is used; consumer lake of orders holds the most, \d+ KiB"
        window.wait_for("the sentence", lambda: re.fullmatch(said, window.text("note")))


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_axe_finds_nothing(window: Browser, service: Process, width: int, colours: str) -> None:
    """The rules of WCAG 2.2 AA and best practice, without queues and with one that is shown, in both colours."""
    axe = pytest.importorskip("axe_playwright_python")
    script = Path(axe.__file__).with_name("axe.min.js").read_text()
    window.resize(width, 844, 1.0)
    window.prefer(colours)
    window.open(service.address)
    window.wait_for("the state", lambda: window.text("state") == "open")
    assert window.evaluate(script + AXE) == []
    append(service, "orders", b"one")
    call(service, "PUT", "/v1/queues/orders/consumers/lake", b"{}")
    window.open(service.address + "/#queue=orders")
    window.run("location.reload()")
    window.wait_for("the record", lambda: window.text("records").endswith("  one"))
    window.wait_for("the consumer", lambda: "lake" in window.text("consumer-list"))
    assert window.evaluate(script + AXE) == []
    window.prefer("light")


AXE = """
; axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] })
    .then((found) => found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.target).join(", ")}`))
"""


async def test_a_long_recovery_shows_its_progress(window: Browser, directory: Path) -> None:
    """Before the log is open, the bar shows how much of it has been read; then the numbers appear."""

    def watch(text: str) -> None:
        window.wait_for("the progress", lambda: window.text("recovery-text") == text)
        assert window.run("return document.getElementById('recovery').hidden") is False
        assert window.text("state") == "recovering"

    async with serving(directory, recovered=False) as served:
        await asyncio.to_thread(window.open, served.url)
        await asyncio.to_thread(watch, "0 %")
        served.service._on_progress(RecoveryProgress(42, 100))
        await asyncio.to_thread(watch, "42 %")
        await served.service.open(directory)
        await asyncio.to_thread(window.wait_for, "the log", lambda: window.text("state") == "open")
        assert await asyncio.to_thread(window.run, "return document.getElementById('recovery').hidden")


def test_others_pages_get_nothing_from_it(service: Process) -> None:
    """The page allows only its own script, style and service, and must not be shown in a frame."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(service.address, headers={"Accept": "text/html"})
    with opener.open(request, timeout=60) as response:
        policy = response.headers["Content-Security-Policy"]
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    with opener.open(service.address, timeout=60) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
