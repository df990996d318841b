"""The memory of the machine, from files as the kernel writes them, below a temporary folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrecordlog_async.support.machine import (
    BUDGETS,
    GIB,
    HELD,
    MIB,
    MachineMemory,
    default_memory_bytes,
    fit_budgets,
    machine_memory,
)

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "35 31 0:32 {} /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n"
V1_CPU = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
HYBRID_V2 = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
UNLIMITED = 2**63 - 4096


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a machine of 16 GiB without cgroups."""
    write(tmp_path, "proc/meminfo", "MemTotal:       16777216 kB\nMemFree:         1000000 kB\n")
    return tmp_path


def write(root: Path, name: str, content: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def describe(root: Path, cgroup: str, mounts: str, **limits: str | int) -> MachineMemory | None:
    """Write what the kernel says, and the files of limits; `__` stands for a slash and `_DOT_` for a dot."""
    write(root, "proc/self/cgroup", cgroup)
    write(root, "proc/self/mountinfo", mounts)
    for name, content in limits.items():
        write(root, "sys/fs/cgroup/" + name.replace("__", "/").replace("_DOT_", "."), f"{content}\n")
    return machine_memory(str(root))


def test_a_machine_without_cgroups_has_its_own_memory(root: Path) -> None:
    """Also where the files of cgroups are missing or say nothing about memory."""
    whole = MachineMemory(16 * GIB, "the memory of this machine")
    assert machine_memory(str(root)) == whole
    assert describe(root, "1:cpu:/x\n", V1_CPU) == whole
    assert describe(root, "0::/x\n", V2) == whole


def test_v2_the_smallest_limit_on_the_way_up_counts(root: Path) -> None:
    """A service's own cgroup may have no limit, or a larger one than the slice around it."""
    found = describe(
        root,
        "0::/system.slice/wal.service\n",
        V2,
        system_DOT_slice__wal_DOT_service__memory_DOT_max="max",
        system_DOT_slice__memory_DOT_max=512 * MIB,
    )
    assert found == MachineMemory(512 * MIB, "/sys/fs/cgroup/system.slice/memory.max")
    found = describe(root, "0::/a/b/c\n", V2, a__memory_DOT_max=GIB, a__b__c__memory_DOT_max=2 * GIB)
    assert found == MachineMemory(GIB, "/sys/fs/cgroup/a/memory.max")


def test_v2_a_process_is_slowed_down_above_memory_high(root: Path) -> None:
    """Above MemoryHigh= nothing is killed, but nothing gets on either: the limit must be below that."""
    found = describe(root, "0::/a\n", V2, a__memory_DOT_max=GIB, a__memory_DOT_high=768 * MIB)
    assert found == MachineMemory(768 * MIB, "/sys/fs/cgroup/a/memory.high")


def test_v1_no_limit_is_a_large_number(root: Path) -> None:
    """Nested, with a limit in the middle, and one that is larger than the machine."""
    below = {"docker__memory_DOT_limit_in_bytes": 400 * MIB, "memory_DOT_limit_in_bytes": UNLIMITED}
    lines = "4:cpuset,memory:/docker/c0ffee\n1:cpu:/elsewhere\n"
    found = describe(
        root, lines, V1_CPU + V1.format("/"), docker__c0ffee__memory_DOT_limit_in_bytes=UNLIMITED, **_in_memory(below)
    )
    assert found == MachineMemory(400 * MIB, "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes")
    found = describe(root, lines, V1.format("/"), **_in_memory({"docker__memory_DOT_limit_in_bytes": 64 * GIB}))
    assert found == MachineMemory(16 * GIB, "the memory of this machine")


def _in_memory(limits: dict[str, int]) -> dict[str, str | int]:
    return {f"memory__{name}": content for name, content in limits.items()}


@pytest.mark.parametrize("path", ["/docker/c0ffee", "/", "/../other", "/kubepods/pod1/c0ffee"])
def test_a_container_sees_its_own_cgroup_as_the_root(root: Path, path: str) -> None:
    """/proc/self/cgroup names a path of the host, or one outside of the namespace: neither is below the mount."""
    found = describe(root, f"0::{path}\n", V2, memory_DOT_max=300 * MIB)
    assert found == MachineMemory(300 * MIB, "/sys/fs/cgroup/memory.max")
    found = describe(
        root, f"4:memory:{path}\n", V1.format("/docker/c0ffee"), memory__memory_DOT_limit_in_bytes=200 * MIB
    )
    assert found == MachineMemory(200 * MIB, "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def test_a_part_of_a_hierarchy_may_be_mounted(root: Path) -> None:
    """The path in the hierarchy begins with the root of the mount, which is not part of the folder."""
    name = "memory__child__memory_DOT_limit_in_bytes"
    found = describe(root, "4:memory:/docker/c0ffee/child\n", V1.format("/docker/c0ffee"), **{name: 200 * MIB})
    assert found == MachineMemory(200 * MIB, "/sys/fs/cgroup/memory/child/memory.limit_in_bytes")


def test_hybrid_the_limit_is_in_v1(root: Path) -> None:
    """systemd mounts an empty v2 hierarchy next to the controllers of v1."""
    lines = "4:memory:/a\n0::/a\n"
    found = describe(root, lines, V1.format("/") + HYBRID_V2, memory__a__memory_DOT_limit_in_bytes=256 * MIB)
    assert found == MachineMemory(256 * MIB, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes")
    found = describe(root, lines, V1.format("/") + HYBRID_V2, unified__a__memory_DOT_max=128 * MIB)
    assert found == MachineMemory(128 * MIB, "/sys/fs/cgroup/unified/a/memory.max")


def test_names_may_have_spaces(root: Path) -> None:
    """mountinfo writes them as octal numbers."""
    write(root, "mnt/c g/memory.max", f"{GIB}\n")
    found = describe(root, "0::/\n", "30 23 0:26 / /mnt/c\\040g rw - cgroup2 cgroup2 rw\n")
    assert found == MachineMemory(GIB, "/mnt/c g/memory.max")


def test_half_of_what_the_process_and_its_budgets_leave() -> None:
    """Budgets are whole from 1 GiB on, and shrink in proportion; 4 GiB at most, even where nothing is known."""
    sizes = {size: default_memory_bytes(MachineMemory(size * MIB, "")) // MIB for size in (64, 192, 256, 1_024, 16_384)}
    assert sizes == {64: 8, 192: 37, 256: 61, 1_024: 340, 16_384: 4_096}
    assert default_memory_bytes(None) == 4 * GIB
    for size in (192 * MIB, 300 * MIB, GIB, 3 * GIB):
        machine = MachineMemory(size, "")
        budgets = fit_budgets(dict.fromkeys(BUDGETS), machine)
        held = sum(budgets[name] for name in HELD)
        assert 2 * default_memory_bytes(machine) + held + 64 * MIB <= size
        assert budgets["record_bytes"] <= budgets["pending_bytes"] and budgets["body_bytes"] <= budgets["bodies_bytes"]


def test_a_size_that_was_set_stays_and_the_default_next_to_it_follows() -> None:
    """A record needs room to wait, and a body room to arrive."""
    machine = MachineMemory(256 * MIB, "")
    wanted = {"record_bytes": 100 * MIB, "pending_bytes": None, "body_bytes": None, "bodies_bytes": MIB}
    assert fit_budgets(wanted, machine) == {
        "record_bytes": 100 * MIB,
        "pending_bytes": 100 * MIB,
        "body_bytes": MIB,
        "bodies_bytes": MIB,
    }
    both = {"record_bytes": 2 * MIB, "pending_bytes": MIB}  # `Limits` refuses that, with what to change
    assert fit_budgets(both, machine) == both
