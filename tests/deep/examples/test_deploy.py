"""The deployment files use only settings and routes that the service has."""

from __future__ import annotations

import http.client
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.process_collector import ProcessCollector

from mrecordlog_async import __version__
from mrecordlog_async.cli.errors import DAMAGE, LOCKED, LOG_FAILED, USAGE
from mrecordlog_async.cli.settings import NOT_SETTINGS, SETTINGS
from tests.cli.running import given, settings_of
from tests.serving import TIMEOUT_SECONDS, Process

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "examples" / "deploy"


def test_the_toml_file_is_read() -> None:
    """Every key is a setting, and nearly every setting is shown."""
    values = settings_of("--config", str(DEPLOY / "mrecordlog.toml"))
    assert (values["memory_bytes"], values["drain_seconds"]) == (2 * 1024**3, 20.0)
    shown = set(re.findall(r"^#? ?(\w+) = ", (DEPLOY / "mrecordlog.toml").read_text(), re.MULTILINE))
    left_out = {"uds", "segment_bytes", "pending_bytes", "queues_limit", "bodies_bytes", "sending_bytes"}
    assert shown | left_out == {setting.name for setting in SETTINGS}


@pytest.mark.parametrize("file", ["mrecordlog.service", "Dockerfile", "kubernetes.yaml", "kubernetes-several.yaml"])
def test_variables_and_flags_in_service_files_are_settings(file: str) -> None:
    """A renamed setting breaks this before it breaks a deployment."""
    text = (DEPLOY / file).read_text()
    uncommented = "\n".join(line for line in text.splitlines() if not line.strip().startswith("#"))
    named = set(re.findall(r"MRECORDLOG_(\w+)", uncommented)) - NOT_SETTINGS
    assert {name.lower() for name in named} <= {setting.name for setting in SETTINGS}
    flags = set(re.findall(r'"--([a-z-]+)"', uncommented)) | set(re.findall(r" --(port|[a-z]+-bytes) ", uncommented))
    assert {flag.replace("-", "_") for flag in flags} <= {setting.name for setting in SETTINGS}
    assert named or flags


def test_probes_work_with_a_token_and_named_hosts_on_every_address(tmp_path: Path) -> None:
    """The Dockerfile's health check works unchanged, and so do Kubernetes' probes, which use the pod's address."""
    tokens = tmp_path / "token"
    tokens.write_text("0123456789abcdef0123456789abcdef\n")
    tokens.chmod(0o600)
    check = re.search(r'"-c", "(.*urlopen.*)"\]', (DEPLOY / "Dockerfile").read_text())
    assert check is not None
    paths = re.findall(r"httpGet: \{path: (/\w+),", (DEPLOY / "kubernetes.yaml").read_text())
    assert set(paths) == {"/healthz", "/readyz"}
    exposed = ["--host", "0.0.0.0", "--token-file", str(tokens), "--allow-host", "wal.example.com"]
    with Process(tmp_path / "wal", exposed) as service:
        command = check[1].replace(":8080", f":{service.port}")
        assert command != check[1]
        assert subprocess.run([sys.executable, "-c", command], timeout=60, check=False).returncode == 0
        for path in paths:
            assert ask(service.port, path, "10.0.0.7:8080") == 200
        assert ask(service.port, "/metrics", "10.0.0.7:8080") == 421
        assert ask(service.port, "/metrics", "wal.example.com") == 401


def test_what_scrapes_metrics_brings_a_token() -> None:
    """Annotations cannot provide a token, so the file has none for Prometheus."""
    text = (DEPLOY / "kubernetes.yaml").read_text()
    assert re.findall(r"^\s*prometheus\.io", text, re.MULTILINE) == []
    assert "prometheus.yml" in text


def ask(port: int, path: str, host: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    connection.request("GET", path, headers={"Host": host})
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_takes_the_unit() -> None:
    """systemd knows every key of the unit."""
    unit = str(DEPLOY / "mrecordlog.service")
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    assert "Unknown" not in done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_takes_the_unit_of_the_drain() -> None:
    """systemd knows every key of it."""
    unit = str(DEPLOY / "mrecordlog-drain.service")
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    assert "Unknown" not in done.stderr and "Invalid" not in done.stderr


def test_the_unit_of_the_drain_has_options_of_the_command_and_keeps_nothing() -> None:
    """The table says how far it is; it is not restarted if its settings are wrong."""
    unit = (DEPLOY / "mrecordlog-drain.service").read_text()
    command = re.search(r"^ExecStart=\S+/mrecordlog (.*)$", unit, re.MULTILINE)
    assert command is not None
    typed = given(*command[1].split())
    assert (typed["every_seconds"], typed["metrics"]) == (10.0, "9108")
    assert "StateDirectory" not in unit
    assert f"\nRestartPreventExitStatus={USAGE}\n" in unit


# The backup.


def test_the_backup_keeps_the_newest_and_leaves_them_when_the_log_is_damaged(tmp_path: Path) -> None:
    """It makes verified snapshots, removes the oldest, and removes none after one that failed."""
    log, backups = tmp_path / "wal", tmp_path / "backups"
    backups.mkdir()
    for name in ("2026-01-01T000000Z", "2026-01-02T000000Z", "my-own-notes"):
        (backups / name).mkdir()
    _run("append", log, "q", "--create", stdin=b"something to be found again")
    shutil.copy(DEPLOY / "mrecordlog-backup", tmp_path)
    (tmp_path / "mrecordlog").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mrecordlog_async "$@"\n')
    (tmp_path / "mrecordlog").chmod(0o755)
    command = [str(tmp_path / "mrecordlog-backup"), str(log), str(backups), "2"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=TIMEOUT_SECONDS).returncode == 0
    kept = sorted(path.name for path in backups.iterdir())
    assert kept[0] == "2026-01-02T000000Z" and kept[2] == "my-own-notes" and len(kept) == 3
    earlier = (backups / kept[1]).rename(backups / "2026-01-03T000000Z").name  # the next one may be of the same second
    kept[1] = earlier
    (segment,) = log.glob("wal-*")
    segment.write_bytes(segment.read_bytes().replace(b"something", b"somebody!"))
    failed = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=TIMEOUT_SECONDS)
    assert (failed.returncode, sorted(path.name for path in backups.iterdir())) == (DAMAGE, kept)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
@pytest.mark.parametrize("unit", ["mrecordlog-backup.service", "mrecordlog-backup.timer"])
def test_systemd_takes_the_units_of_the_backup(unit: str) -> None:
    """systemd knows every key of them."""
    done = subprocess.run(["systemd-analyze", "verify", str(DEPLOY / unit)], capture_output=True, text=True, timeout=60)
    assert "Unknown" not in done.stderr and "Invalid" not in done.stderr and "Failed to parse" not in done.stderr


def _run(*words: object, stdin: bytes = b"") -> None:
    command = [sys.executable, "-m", "mrecordlog_async", *map(str, words)]
    subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, check=True, timeout=TIMEOUT_SECONDS)


# Where the log is.


@pytest.mark.parametrize(
    ("file", "mounted"),
    [("Dockerfile", "/data"), ("mrecordlog.service", "/var/lib/mrecordlog")],
)
def test_the_log_is_below_what_is_mounted(file: str, mounted: str) -> None:
    """`repair` writes a sibling that is renamed to the log's place: neither works with a mount point."""
    text = (DEPLOY / file).read_text()
    assert re.search(rf'serve"?,? "?{mounted}/wal\b', text)
    assert f"VOLUME {mounted}" in text or f"StateDirectory={Path(mounted).name}" in text


# Kubernetes.


PODS = [
    ("kubernetes.yaml", "StatefulSet"),
    ("kubernetes-several.yaml", "StatefulSet"),
    ("kubernetes-several.yaml", "Deployment"),
    ("repair-pod.yaml", "Pod"),
]


def document(file: str, kind: str) -> dict[str, Any]:
    """Return the one object of a kind in a file."""
    (found,) = (one for one in yaml.safe_load_all((DEPLOY / file).read_text()) if one["kind"] == kind)
    assert isinstance(found, dict)
    return found


def pod(file: str = "kubernetes.yaml", kind: str = "StatefulSet") -> dict[str, Any]:
    spec = document(file, kind)["spec"]
    found: dict[str, Any] = spec if kind == "Pod" else spec["template"]["spec"]
    return found


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("initContainers", []), *spec["containers"]]


@pytest.mark.parametrize(("file", "kind"), PODS)
def test_the_pod_meets_the_restricted_standard(file: str, kind: str) -> None:
    """Every container, even those that run before the service. The fields are those that the standard names."""
    spec = pod(file, kind)
    context = spec["securityContext"]
    assert (context["runAsNonRoot"], context["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    assert all(set(volume) - {"name"} <= allowed for volume in spec["volumes"])
    for container in containers(spec):
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert "privileged" not in own and "hostPort" not in str(container.get("ports"))


@pytest.mark.parametrize(("file", "kind"), PODS)
def test_an_image_that_the_node_has_is_not_pulled(file: str, kind: str) -> None:
    """A tag other than latest and a policy: what the first lines of the Dockerfile build can be run as it is."""
    spec = pod(file, kind)
    built = re.findall(r"-t (\S+)", (DEPLOY / "Dockerfile").read_text())
    for container in containers(spec):
        assert container["image"] in built and container["imagePullPolicy"] == "IfNotPresent"
        assert container["image"].partition(":")[2] == __version__.partition(".dev")[0]


def test_a_pod_may_take_as_long_to_end_as_the_service_needs() -> None:
    """Longer than requests may take, in Kubernetes and systemd; and a failed log ends in far less."""
    values = settings_of()
    unit = (DEPLOY / "mrecordlog.service").read_text()
    stop = re.search(r"TimeoutStopSec=(\d+)", unit)
    assert stop is not None
    needed = values["drain_seconds"] + values["failure_grace"] + 5
    assert min(int(stop[1]), pod()["terminationGracePeriodSeconds"]) > needed


def test_the_pod_for_repairs_has_the_log_and_the_user_of_the_service() -> None:
    """Its claim is that of the first pod, and what it writes can be opened by the service."""
    service, repair = document("kubernetes.yaml", "StatefulSet"), pod("repair-pod.yaml", "Pod")
    (claim,) = service["spec"]["volumeClaimTemplates"]
    (volume,) = repair["volumes"]
    name = f"{claim['metadata']['name']}-{service['metadata']['name']}-0"
    assert volume["persistentVolumeClaim"]["claimName"] == name
    assert repair["securityContext"] == pod()["securityContext"]
    (of_repair,), (of_service,) = repair["containers"], pod()["containers"]
    assert of_repair["volumeMounts"] == of_service["volumeMounts"][:1]
    steps = re.findall(r"^(?:#   )?(kubectl .*?)(?: {4}#.*)?$", (DEPLOY / "repair-pod.yaml").read_text(), re.MULTILINE)
    assert len(steps) == 4
    page = (DEPLOY.parents[1] / "docs" / "operations.md").read_text()
    assert all(step in page for step in steps)


def test_several_services_differ_from_a_single_one_in_what_several_need() -> None:
    """What is right for one pod is right for three; each has its own volume and its own name."""
    one, three = document("kubernetes.yaml", "StatefulSet"), document("kubernetes-several.yaml", "StatefulSet")
    assert three["spec"].pop("replicas") == 3 and one["spec"].pop("replicas") == 1
    assert three["spec"].pop("podManagementPolicy") == "Parallel"
    assert three["spec"]["template"]["spec"].pop("topologySpreadConstraints")
    assert three == one
    service = document("kubernetes-several.yaml", "Service")["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)


def test_the_drain_of_several_services_is_never_run_twice_and_reads_every_pod() -> None:
    """Its options are those of the command, its servers the pods of the StatefulSet; it has no volume that is kept."""
    services, drain = (
        document("kubernetes-several.yaml", "StatefulSet"),
        document("kubernetes-several.yaml", "Deployment"),
    )
    spec = pod("kubernetes-several.yaml", "Deployment")
    (container,) = spec["containers"]
    typed = given(*container["args"])
    name, port = services["metadata"]["name"], 8080
    pods = [f"{name}-{number}" for number in range(services["spec"]["replicas"])]
    assert list(typed["servers"]) == [f"{one}=http://{one}.{services['spec']['serviceName']}:{port}" for one in pods]
    assert typed["consumer"] is not None
    assert (drain["spec"]["replicas"], drain["spec"]["strategy"]) == (1, {"type": "Recreate"})
    assert not any("persistentVolumeClaim" in volume for volume in spec["volumes"])


# systemd.


def test_the_unit_shows_the_service_what_its_process_metrics_need(tmp_path: Path) -> None:
    """Without /proc/stat, which ProcSubset=pid hides, there are none, and the alert on restarts is silent."""
    (tmp_path / "self").symlink_to("/proc/self")
    assert list(ProcessCollector(proc=str(tmp_path), registry=None).collect()) == []
    unit = (DEPLOY / "mrecordlog.service").read_text()
    assert "process_start_time_seconds" in (DEPLOY / "mrecordlog.rules.yml").read_text()
    assert not re.search("^ProcSubset=pid", unit, re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_rates_the_unit_as_hardened(tmp_path: Path) -> None:
    """An exposure of 10 is a service without any hardening."""
    unit = str(DEPLOY / "mrecordlog.service")
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", unit]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_a_supervisor_restarts_a_failed_log_and_nothing_that_restarting_cannot_help() -> None:
    """The exit codes in the unit are those of the command line."""
    unit = (DEPLOY / "mrecordlog.service").read_text()
    assert "\nRestart=on-failure\n" in unit
    prevented = re.search(r"RestartPreventExitStatus=(.*)", unit)
    assert prevented is not None
    assert prevented[1].split() == [str(code) for code in (USAGE, DAMAGE, LOCKED)]
    assert LOG_FAILED not in (USAGE, DAMAGE, LOCKED)


MDWE = """
import ctypes, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):
    sys.exit(77)
from mrecordlog_async.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_the_service_runs_where_no_memory_may_become_executable(tmp_path: Path) -> None:
    """MemoryDenyWriteExecute of the unit; the kernel can be asked for the same (PR_SET_MDWE)."""
    command = [sys.executable, "-c", MDWE, "serve", str(tmp_path / "wal"), "--port", "0", "--persist", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode == 77:
        pytest.skip("the kernel cannot deny it")
    assert "--persist: 'x'" in done.stderr
    with subprocess.Popen([*command[:-2]], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "new log" in line:
                process.terminate()
        assert process.wait(60) == 0
