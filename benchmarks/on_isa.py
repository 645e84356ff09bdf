"""Run a Python program as on a processor with a smaller instruction set.

    python benchmarks/on_isa.py x86-64-v3 benchmarks/gemm.py --rounds 15
    python benchmarks/on_isa.py x86-64-v3 -m pytest -n 2

The CPUID instruction and /proc/cpuinfo answer as on a processor without the rest
(`hidden_cpuid.c`, compiled with `cc`): weft, NumPy, OpenBLAS, MKL, oneDNN, XLA and the compilers
that torch.compile starts all see a machine with AVX2 alone, say. libc, which chooses its own memcpy
before that, is told by GLIBC_TUNABLES. Caches of compiled code are apart from the machine's.

Linux hides CPUID on processors that can (`cpuid_fault` in /proc/cpuinfo). Elsewhere the program is
told by weft's WEFT_TARGET and the peers' own switches, which not all of them have: XLA's matrix
products (JAX 0.10) and MKL on AMD keep AVX-512. A line on stderr says which of the two it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("hidden_cpuid.c")
CPUINFO = Path("/proc/cpuinfo")

# instruction set -> what libc calls what is hidden, how Linux's names of it begin
HIDDEN = {
    "x86-64-v2": ("-AVX,-AVX2,-BMI1,-BMI2,-FMA,-MOVBE,-LZCNT,-AVX512F,-AVX512VL,-AVX512BW",
                  ("avx", "amx", "fma", "f16c", "bmi", "abm", "movbe", "vaes", "vpclmul")),
    "x86-64-v3": ("-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD", ("avx512", "amx")),
}  # fmt: skip
# instruction set -> the peers' switches
SWITCHES = {
    "x86-64-v2": {
        "OPENBLAS_CORETYPE": "Nehalem", "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41", "XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2",
    },
    "x86-64-v3": {
        "OPENBLAS_CORETYPE": "Zen", "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2", "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    },
}  # fmt: skip


def masked_cpuinfo(isa: str) -> str:
    """/proc/cpuinfo without the flags of what `isa` lacks."""
    lines = []
    for line in CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() == "flags":
            kept = [flag for flag in flags.split() if not flag.startswith(HIDDEN[isa][1])]
            line = f"{name}: {' '.join(kept)}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def hiding(isa: str, folder: Path) -> dict[str, str] | None:
    """The environment in which a process and those that it starts see `isa`; None if this machine
    cannot hide CPUID. What it needs is written to `folder`."""
    if "cpuid_fault" not in CPUINFO.read_text(encoding="utf-8", errors="replace"):
        return None
    built, shown = folder / "hidden_cpuid.so", folder / "cpuinfo"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", built, SOURCE, "-ldl"], check=True)
    shown.write_text(masked_cpuinfo(isa), encoding="utf-8")
    environment = {
        **os.environ,
        "LD_PRELOAD": str(built), "HIDE_CPUID": isa, "HIDE_CPUINFO": str(shown),
        "GLIBC_TUNABLES": f"glibc.cpu.hwcaps={HIDDEN[isa][0]}",
    }  # fmt: skip
    for pinned in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "WEFT_TARGET"):
        environment.pop(pinned, None)
    tried = subprocess.run(["true"], env=environment, check=False)
    return environment if tried.returncode == 0 else None


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1] not in HIDDEN:
        sys.exit(f"usage: on_isa.py {'|'.join(HIDDEN)} PROGRAM.py|-m MODULE [ARGUMENTS]")
    isa, *command = sys.argv[1:]
    folder = Path(tempfile.gettempdir()) / f"weft-on-isa-{os.getuid()}" / isa
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    environment = hiding(isa, folder)
    if environment is None:
        environment = {**os.environ, **SWITCHES[isa], "WEFT_TARGET": isa}
    way = "the peers' switches" if "HIDE_CPUID" not in environment else "CPUID hidden"
    print(f"on_isa: {isa}, by {way}", file=sys.stderr)
    environment |= {
        # what torch.compile finds there of another set it runs all the same, and crashes
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torchinductor"),
    }
    os.execve(sys.executable, [sys.executable, *command], environment)


if __name__ == "__main__":
    main()
