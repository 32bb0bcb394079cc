"""Packs what a GPU machine without network needs; `make gpu-pack` runs it.

    .venv/bin/python -m requirements.gpu_pack --cuda=FOLDER | --no-cuda

`bring_up.sh`, which is part of the pack, says what to do there.
"""

import argparse
import os
import pathlib
import re
import sys
import time

from requirements.gpu_pack import contents, pieces


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m requirements.gpu_pack")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("gpu-pack"))
    parser.add_argument("--piece_mib", type=int, default=40, help="the most MiB of a piece")
    parser.add_argument("--preset", type=int, default=6, help="of xz: 0 is fast, 9 is small")
    parser.add_argument("--data_dir", type=pathlib.Path, default=_data_dir(), help="TFDS's folder")
    parser.add_argument("--data", default="fashion_mnist", help="data sets, separated by commas")
    parser.add_argument(
        "--compute_capability",
        type=_capability,
        help="of the GPUs, such as 9.0: TensorFlow's kernels for others are left out",
    )
    libraries = parser.add_mutually_exclusive_group(required=True)
    libraries.add_argument("--cuda", type=pathlib.Path, help="a folder of NVIDIA's packages")
    libraries.add_argument("--no-cuda", action="store_true", help="a pack for CPUs")
    parser.add_argument(
        "--whole_cuda",
        action="store_true",
        help="the libraries for Fourier transforms, sparse matrices and recurrent layers as well, "
        "which TensorFlow looks for and tff_pfl does not compute with",
    )
    return parser.parse_args(arguments)


def main(flags: argparse.Namespace) -> None:
    start = time.monotonic()
    groups = {
        "packages": contents.packages(flags.compute_capability),
        "CUDA": []
        if flags.no_cuda
        else contents.cuda_libraries(flags.cuda, whole=flags.whole_cuda),
        "repository": contents.repository(),
        "data": contents.data_sets(flags.data_dir, filter(None, flags.data.split(","))),
    }
    first = contents.interpreter()
    for name, members in {"interpreter": first, **groups}.items():
        size = sum(member.size for member in members)
        print(f"{name:12} {len(members):6} files {size / pieces.MIB:8.1f} MiB", flush=True)
    manifest = pieces.write_pack(
        first,
        groups.values(),
        flags.output,
        contents.ROOT / "build" / "gpu-pack",
        piece_size=flags.piece_mib * pieces.MIB,
        preset=flags.preset,
    )
    size = sum(piece["size"] for piece in manifest["pieces"])
    print(
        f"{flags.output}: {len(manifest['pieces'])} pieces, {size / pieces.MIB:.1f} MiB, of "
        f"{manifest['unpacked'] / pieces.MIB:.1f} MiB, in {time.monotonic() - start:.0f} s"
    )


def _capability(text):
    if not re.fullmatch(r"\d+\.\d", text):
        raise argparse.ArgumentTypeError(f"{text} is no compute capability, such as 9.0")
    return int(text.replace(".", ""))


def _data_dir():
    return pathlib.Path(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")).expanduser()


if __name__ == "__main__":
    try:
        main(parse())
    except (ValueError, OSError) as e:
        sys.exit(f"error: {e}")
