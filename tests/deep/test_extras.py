"""Each extra, installed alone in an empty environment: what it is for works there, without anything of this tree."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Iterator
from os import environ
from pathlib import Path
from urllib.request import urlopen

import pytest

from mrecordlog_async.spark.java import NoJavaError, ensure_java
from tests.deep.built import build
from tests.deep.installed import Case, use
from tests.serving import Process
from tests.spark import small_java

SECONDS = 300

CLIENT = """
import asyncio, sys
from mrecordlog_async.client import BlockingRecordLogClient, RecordLogClient

async def read(url):
    async with RecordLogClient(url) as client:
        return [record.payload async for record in client.range("clicks")]

with BlockingRecordLogClient(sys.argv[1]) as client:
    client.append("clicks", b"one", create=True)
    with client.producer("clicks") as producer:
        producer.append_record(b"two")
print(asyncio.run(read(sys.argv[1])))
"""

FASTAPI = """
import asyncio
from fastapi import FastAPI, Request
from mrecordlog_async.fastapi import Log, add_exception_handlers, lifespan

app = FastAPI(lifespan=lifespan("./wal", queues=["clicks"]))
add_exception_handlers(app)

@app.post("/clicks")
async def append(request: Request, log: Log) -> dict[str, int]:
    return {"position": await log.append("clicks", await request.body())}

async def main():
    sent = []
    scope = {"type": "http", "method": "POST", "path": "/clicks", "headers": [], "query_string": b""}

    async def receive():
        return {"type": "http.request", "body": b"one"}

    async def send(message):
        sent.append(message)

    async with app.router.lifespan_context(app) as state:
        await app({**scope, "state": dict(state)}, receive, send)
    print(sent[0]["status"], sent[1]["body"])

asyncio.run(main())
"""

DRAINED = """
import sys
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
# By a query: pyarrow would read through a file system in Python, in which a thread may be when the interpreter ends.
found = QueryBuilder().register("t", DeltaTable(sys.argv[1])).execute("SELECT position, payload FROM t")
print(pa.table(found).to_pylist())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel."""
    (found,) = build(tmp_path_factory.mktemp("built"), "--wheel").glob("*.whl")
    return found


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Run a service, in the environment of the tests."""
    with Process(tmp_path / "service") as service:
        yield service.address


def environment(place: Path, wheel: Path, extra: str) -> Path:
    """Install *wheel* with one extra into a new environment that has nothing else, not even pip; return its Python."""
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    subprocess.run([*command, f"mrecordlog_async[{extra}] @ {wheel.as_uri()}"], check=True, timeout=SECONDS)
    return python


def run(command: list[object], place: Path, more: dict[str, str] | None = None) -> str:
    """Run a command in *place*, where nothing leads to the source; return what it prints."""
    clean = {name: value for name, value in environ.items() if not name.startswith(("PYTHON", "MRECORDLOG"))}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=place, env=clean | (more or {}), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_server_serves(wheel: Path, tmp_path: Path) -> None:
    """It stores a record over HTTP and hands it out; its command reads the directory."""
    python = environment(tmp_path / "environment", wheel, "server")
    use([str(python.with_name("mrecordlog"))], Case(wheel, "pure", {}), tmp_path)


def test_both_clients_append_and_read(wheel: Path, url: str, tmp_path: Path) -> None:
    """The blocking one with a producer, the asyncio one what that has stored."""
    python = environment(tmp_path / "environment", wheel, "client")
    assert run([python, "-c", CLIENT, url], tmp_path) == "[b'one', b'two']\n"


def test_an_application_of_fastapi_stores_a_record(wheel: Path, tmp_path: Path) -> None:
    """In its own process, under any server: here under none."""
    python = environment(tmp_path / "environment", wheel, "fastapi")
    assert run([python, "-c", FASTAPI], tmp_path) == """200 b'{"position":0}'\n"""


@pytest.mark.timeout(600)
def test_a_drain_stores_a_record_by_an_executor_that_is_another_process(wheel: Path, url: str, tmp_path: Path) -> None:
    """Driver, executor and the workers of Python find all that they need in this environment, but for Java."""
    try:
        java = ensure_java()
    except NoJavaError as error:
        pytest.skip(str(error))
    python = environment(tmp_path / "environment", wheel, "spark")
    with urlopen(f"{url}/v1/queues/clicks/records?create=1", data=b"one", timeout=SECONDS):
        pass
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    command = [packages / "pyspark" / "bin" / "spark-submit", "--master", "local-cluster[1,1,512]"]
    command += ["--conf", "spark.ui.enabled=false", "--conf", "spark.executor.memory=512m"]
    command += ["--conf", f"spark.executor.extraJavaOptions={small_java.OPTIONS}"]
    command += ["--driver-java-options", small_java.OPTIONS, packages / "mrecordlog_async" / "spark" / "__main__.py"]
    command += ["drain", "--shared-paths", "--server", f"a={url}", "--output", "table"]
    variables = {"JAVA_HOME": java, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    run(command, tmp_path, variables)
    assert run([python, "-c", DRAINED, "table"], tmp_path) == "[{'position': 0, 'payload': b'one'}]\n"
