"""Stand-ins for NVIDIA's libraries: a CUDA device that is none, so that the GPU path's host side runs on a CPU. FAKE.

Real are torch (its CUDA build), ProcessGroupNCCL, autograd, the caching allocator, Megatron-core on ``cuda:0``, vLLM's
GPU worker, Triton's and Inductor's compilers. Not real are kernels and cuBLAS, which do nothing: memory is zero, or
what was there before. Streams and events are done at once, and device memory is this process's. Copies between host and
device are copies, and broadcasts of two ranks move bytes, through files.

So devices and types of tensors, orders of calls, forks, groups, deaths, time limits and bytes of weights can be tested;
numbers, peaks of memory, speed, and what waits for values on the device cannot.

============================  =========================================================================================
``FAKE_GPUS``                 how many there are; one by default
``FAKE_KIND``                 what NVML calls each: ``H100``, the default, ``A100`` or ``L40S``
``FAKE_HANG``                 while a file of that path is there, no event is done: what was begun on the device hangs
``FAKE_BROKEN``               while a file of that path is there, NCCL says that the other rank is gone
============================  =========================================================================================
"""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

type Rehearse = Callable[..., list[dict[str, Any]]]
"""Runs a function of ``children`` in a process that sees GPUs, with words for it, and returns what it told."""

MARK: Final = "XDG_GPU_REHEARSAL"
"""A variable that every process of a rehearsal inherits: by it they are found when their front end is gone."""
HERE: Final = Path(__file__).parent
SITE: Final = Path(sysconfig.get_paths()["purelib"])
LIBRARIES: Final = {
    "libcudart.so.13": "cudart",
    "libcublas.so.13": "cublas",
    "libcublasLt.so.13": "cublaslt",
    "libnccl.so.2": "nccl",
    "libcuda.so.1": "driver",
    "libnvidia-ml.so.1": "nvml",
}
_VERSIONED: Final = tuple(LIBRARIES)[:3]
_PATTERNS: Final = {
    "libnccl.so.2": re.compile(r"p?nccl[A-Z]"),
    "libcublasLt.so.13": re.compile(r"cublasLt"),
    "libcublas.so.13": re.compile(r"cublas[A-Z]"),
    "libcuda.so.1": re.compile(
        r"cu(Init|Ctx|Device|Event|Func|Get|Launch|Link|Mem|Module|Occupancy|Pointer|Stream|TensorMap|Library|Kernel"
        r"|Graph|Driver)"
    ),
}
_HEADER: Final = """\
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDA_CB
#define __align__(n) __attribute__((aligned(n)))
#define __no_return__
#define __builtin_align__(n) __align__(n)
#define __CUDA_DEPRECATED
"""
"""The environment for CPUs has the runtime's headers without this one, ``crt/host_defines.h``."""


def _symbols(file: Path, kind: str) -> list[str]:
    """Return names with their versions, that a library or an object defines or leaves undefined."""
    command = ["nm", *(("-D",) if ".so" in file.name else ()), f"--{kind}", str(file)]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return [line.split()[-1].replace("@@", "@") for line in lines if line]


def _needed() -> dict[str, set[str]]:
    """Return what each library is asked for by the installed ones, and by what Triton builds later on."""
    found: dict[str, set[str]] = {name: set() for name in LIBRARIES}
    found["libcuda.so.1"].update((HERE / "asked_of_driver.txt").read_text(encoding="utf-8").split())
    files = [*SITE.glob("torch/lib/*.so*"), *SITE.glob("nvidia/*/lib/*.so*"), *SITE.glob("vllm/**/*.so")]
    for symbol in (symbol for file in files for symbol in _symbols(file, "undefined-only")):
        name, _, version = symbol.partition("@")
        if version in _VERSIONED:
            found[version].add(name)
        elif (library := next((lib for lib, pattern in _PATTERNS.items() if pattern.match(name)), None)) is not None:
            found[library].add(name)
    return found


def _make(folder: Path, library: str, needed: set[str]) -> None:
    source, object_file = HERE / f"{LIBRARIES[library]}.c", folder / f"{LIBRARIES[library]}.o"
    flags = ["-w", "-O1", "-fPIC", f"-I{SITE}/nvidia/cu13/include", f"-I{folder}/include"]
    subprocess.run(["gcc", *flags, "-c", str(source), "-o", str(object_file)], check=True)
    defined = {symbol.partition("@")[0] for symbol in _symbols(object_file, "defined-only")}
    rest = folder / f"{library}.rest.c"
    rest.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(needed - defined)), "utf-8")
    versions: list[str] = []
    if library in _VERSIONED:
        script = folder / f"{library}.map"
        script.write_text(f"{library} {{ global: *; }};", "utf-8")
        versions = [f"-Wl,--version-script={script}"]
    linked = [f"-Wl,-soname,{library}", *versions, "-o", str(folder / library)]
    subprocess.run(["gcc", *flags, "-shared", str(object_file), str(rest), *linked], check=True)


def build(folder: Path) -> None:
    """Build all of them into a folder, within seconds."""
    header = folder / "include" / "crt" / "host_defines.h"
    header.parent.mkdir(parents=True, exist_ok=True)
    if not (SITE / "nvidia/cu13/include/crt/host_defines.h").exists():
        header.write_text(_HEADER, "utf-8")
    for library, needed in _needed().items():
        _make(folder, library, needed)


def environment(folder: Path, gpus: int = 1) -> Mapping[str, str]:
    """Return the variables of a process that is to see GPUs, whatever build of vLLM is installed."""
    preloaded = ("libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libnccl.so.2")
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(str(folder / name) for name in preloaded),
        "LD_LIBRARY_PATH": str(folder),
        "TRITON_LIBCUDA_PATH": str(folder),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE / "site"), str(HERE.parents[2])]),
        "FAKE_GPUS": str(gpus),
    }


if __name__ == "__main__":
    build(Path(sys.argv[1]))
