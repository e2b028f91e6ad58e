"""What the measurement ran on, as far as it changes the numbers."""

import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harness.results import Machine

FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
PACKAGES = ("headrace", "headrace-native", "openvino", "openvino-genai", "tokenizers")


def describe() -> Machine:
    facts = dict(_facts(Path("/proc/cpuinfo").read_text()))
    flags = facts.get("flags", "").split()
    return Machine(
        cpu=facts.get("model name", "unknown"),
        cores=len(os.sched_getaffinity(0)),
        features=[feature for feature in FEATURES if feature in flags],
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    return {name: found for name in packages if (found := _version(name))}


def _facts(cpuinfo: str) -> list[tuple[str, str]]:
    pairs = (line.partition(":") for line in cpuinfo.splitlines())
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
