"""Packs are small ones here, with a stand-in for the interpreter; see `requirements/gpu_pack`."""

import ctypes
import hashlib
import json
import os
import pathlib
import random
import struct
import subprocess
import sys

import kiwisolver
import pytest

from requirements.gpu_pack import contents, elf, pieces, unpack
from requirements.gpu_pack.pieces import Member

HERE = pathlib.Path(unpack.__file__).parent
BLOCK = 8 << 10
PIECE = 2 * BLOCK
STAND_IN = f'#!/bin/sh\nexec {sys.executable} "$@"\n'.encode()
FIRST = [
    Member("bin/python3.11", STAND_IN, 0o755),
    Member("unpack.py", HERE / "unpack.py"),
    Member("launcher.sh", HERE / "launcher.sh"),
]


def noise(size, seed=0):
    """Bytes that cannot be compressed."""
    return random.Random(seed).randbytes(size)


@pytest.fixture
def members(tmp_path):
    large = tmp_path / "large"
    large.write_bytes(noise(5 * BLOCK + 77))
    os.utime(large, (1_600_000_000, 1_600_000_000))
    return [
        Member("data/large", large, 0o640),
        Member("tff_pfl_repo/run.sh", b"#!/bin/sh\n", 0o755),
        Member("tff_pfl_repo/empty", b""),
        Member("interpreter/lib/some.py", noise(BLOCK // 2, 1)),
    ]


@pytest.fixture
def pack(tmp_path, members):
    pieces.write_pack(
        FIRST, [members[:1], members[1:]], tmp_path / "pack", tmp_path / "cache", piece_size=PIECE
    )
    return tmp_path / "pack"


def names(pack):
    return [entry["name"] for entry in json.loads((pack / "manifest.json").read_text())["pieces"]]


def bring_up(folder, target):
    """`(exit code, output, errors)`, under a caller whose own Python settings are wrong."""
    done = subprocess.run(
        ["sh", str(folder / "bring_up.sh"), str(folder), str(target)],
        env={"PATH": os.environ["PATH"], "PYTHONHOME": "/nowhere", "PYTHONPATH": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def carry(pack, some, folder):
    """A folder with some of the pieces, and with what travels with every one."""
    folder.mkdir()
    for name in (*some, "manifest.json", "bring_up.sh"):
        (folder / name).write_bytes((pack / name).read_bytes())
    return folder


def assert_unpacked(target, members):
    for member in members:
        file = target / member.path
        assert file.read_bytes() == member.read(0, member.size), member.path
        assert file.stat().st_mode & 0o777 == member.mode
    assert (target / "data" / "large").stat().st_mtime == 1_600_000_000
    assert os.access(target / "python", os.X_OK)
    assert not (target / "waiting").exists()


def test_the_manifest_is_that_of_the_pieces(pack, members):
    manifest = json.loads((pack / "manifest.json").read_text())
    assert len(manifest["pieces"]) > 3
    for entry in manifest["pieces"]:
        data = (pack / entry["name"]).read_bytes()
        assert entry["size"] == len(data) <= PIECE
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
    assert names(pack) == sorted(path.name for path in pack.glob("piece-*"))
    assert manifest["unpacked"] == sum(member.size for member in FIRST + members)


def test_a_pack_is_a_function_of_its_content(tmp_path, pack, members):
    again = [members[:1], members[1:]]
    pieces.write_pack(FIRST, again, tmp_path / "other", tmp_path / "other_cache", piece_size=PIECE)
    assert (tmp_path / "other" / "manifest.json").read_text() == (
        pack / "manifest.json"
    ).read_text()


def test_all_pieces_at_once_and_once_more(tmp_path, pack, members):
    target = tmp_path / "there" / "target"
    code, output, errors = bring_up(pack, target)
    assert (code, errors) == (0, "")
    assert output.splitlines()[-1] == f"nothing is missing: {target / 'python'}"
    assert_unpacked(target, members)
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*") if path.is_file()}
    assert bring_up(pack, target) == (0, output, "")
    assert {p: p.stat().st_mtime_ns for p in target.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("order", ["forward", "backward"])
def test_one_piece_a_call_in_any_order(tmp_path, pack, members, order):
    some, target = names(pack), tmp_path / "target"
    if order == "backward":
        some.reverse()
    for i, name in enumerate(some):
        code, output, errors = bring_up(carry(pack, [name], tmp_path / name), target)
        assert errors == ""
        if name != some[-1]:
            assert code == unpack.MISSING
            assert not (target / "python").exists()
            *_, last = output.splitlines()
            missing = sorted(some[i + 1 :]) if order == "forward" else [unpack.FIRST + ","]
            assert last.split()[: 1 + len(missing)] == ["missing:", *missing]
    assert code == 0
    assert_unpacked(target, members)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("how", ["shorter", "another byte"])
def test_a_damaged_piece_is_refused_and_brought_again(tmp_path, pack, members, which, how):
    name, target = names(pack)[which], tmp_path / "target"
    whole = (pack / name).read_bytes()
    middle = len(whole) // 2
    damaged = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    (pack / name).write_bytes(whole[:-20] if how == "shorter" else damaged)
    code, output, errors = bring_up(pack, target)
    assert code == 1
    assert f"error: {name} is damaged" in errors
    assert not (target / "python").exists()
    (pack / name).write_bytes(whole)
    assert bring_up(pack, target)[::2] == (0, "")
    assert_unpacked(target, members)


def test_what_a_killed_call_has_left_is_made_good(tmp_path, pack, members):
    target = tmp_path / "target"
    bring_up(pack, target)
    for path in (target / "unpacked").iterdir():  # written last
        path.unlink()
    (target / "python").unlink()
    (target / "data" / "large").write_bytes(b"x" * 99)
    (target / "tff_pfl_repo" / "run.sh").write_bytes(b"x" * 99)
    (target / "interpreter.new").mkdir()
    assert bring_up(pack, target)[::2] == (0, "")
    assert_unpacked(target, members)


def test_pieces_of_two_packs_do_not_mix(tmp_path, pack, members):
    pieces.write_pack(FIRST, [members[2:]], tmp_path / "b", tmp_path / "cache", piece_size=PIECE)
    bring_up(pack, tmp_path / "target")
    code, _, errors = bring_up(tmp_path / "b", tmp_path / "target")
    assert code == 1
    assert "holds pieces of another pack" in errors


@pytest.mark.parametrize("arguments", [[], ["."], [".", ".", "."], ["/nowhere", "target"]])
def test_how_bring_up_is_called(tmp_path, arguments):
    done = subprocess.run(
        ["sh", str(HERE / "bring_up.sh"), *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    wanted = "usage: sh bring_up.sh" if len(arguments) != 2 else "/nowhere has no manifest.json"
    assert done.stderr.startswith(f"error: {wanted}")


def test_the_launcher_gives_the_packs_own_folders(tmp_path, pack):
    target = tmp_path / "target"
    bring_up(pack, target)
    done = subprocess.run(
        [target / "python", "-c", "import json, os; print(json.dumps(dict(os.environ)))"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": "/nowhere", "LD_LIBRARY_PATH": "/mine"},
        capture_output=True,
        text=True,
        check=True,
    )
    environment = json.loads(done.stdout)
    assert environment["TFDS_DATA_DIR"] == str(target / "data")
    assert environment["CUDA_CACHE_PATH"] == str(target / "cache")
    assert environment["LD_LIBRARY_PATH"] == f"{target / 'interpreter' / 'lib'}:/mine"
    assert "PYTHONPATH" not in environment


def test_blocks_fill_pieces():
    assert pieces.fill([3, 9, 5, 1, 6], 10) == [[1, 3], [4, 0], [2]]
    assert pieces.fill([], 10) == []


@pytest.mark.parametrize("sizes", [[0], [4, 4], [9, 0, 0], [3, 0, 10, 1]])
def test_files_are_cut_into_blocks_and_none_is_lost(sizes):
    files = [Member(str(i), noise(size, i)) for i, size in enumerate(sizes)]
    blocks = pieces.cut(files, 4)
    parts = [part for block in blocks for part in block]
    for file in files:
        own = [part for part in parts if part.member == file]
        assert own, "an empty file is a part, too"
        assert b"".join(file.read(p.start, p.stop) for p in own) == file.content
    assert max(sum(p.stop - p.start for p in block) for block in blocks) <= 4


def test_a_piece_has_to_hold_a_first_one(tmp_path):
    first = [Member("bin/python3.11", noise(PIECE), 0o755)]
    with pytest.raises(ValueError, match=f"first piece has .* of {PIECE} that are allowed"):
        pieces.write_pack(first, [], tmp_path / "a", tmp_path / "b", piece_size=PIECE)


def make_elf(sections, loaded=0):
    """A library with sections `(name, flags, content)`; the first `loaded` bytes are loaded."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name, _, _ in sections) + b".shstrtab\0"
    sections = [*sections, (".shstrtab", 0, names)]
    body, entries = b"", [struct.pack("<IIQQQQ24x", 0, 0, 0, 0, 0, 0)]
    for name, flags, content in sections:
        where = names.index(name.encode() + b"\0"), 1, flags, 0, 120 + len(body), len(content)
        entries.append(struct.pack("<IIQQQQ24x", *where))
        body += content
    header = b"\x7fELF".ljust(32, b"\0") + struct.pack("<QQ", 64, 120 + len(body))
    header += struct.pack("<IHHHHHH", 0, 64, 56, 1, 64, len(entries), len(entries) - 1)
    program = struct.pack("<IIQQQQ16x", 1, 0, 0, 0, 0, loaded)
    return header + program + body + b"".join(entries)


def make_kernels(*kinds):
    """A container of kernels `(kind, architecture, content)`, as `nvcc` embeds them."""
    entries = b"".join(
        struct.pack("<HHIQ12xI32x", kind, 1, 64, len(content), architecture) + content
        for kind, architecture, content in kinds
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


KERNELS = {(1, 80): b"P" * 24, (2, 75): b"a" * 8, (2, 80): b"b" * 16, (2, 86): b"c" * 8}


@pytest.mark.parametrize(
    ("capability", "kept"),
    [(75, "Pa"), (80, "Pb"), (86, "Pbc"), (89, "Pbc"), (90, "P")],
)
def test_kernels_that_a_gpu_cannot_run_are_found(tmp_path, capability, kept):
    containers = [make_kernels((*key, content)) for key, content in KERNELS.items()]
    section = containers[0] + bytes(8) + b"".join(containers[1:])
    library = tmp_path / "library.so"
    library.write_bytes(make_elf([(".text", 2, b"code"), (".nv_fatbin", 2, section)]))
    packed = Member("x", library, 0o644, elf.foreign_kernels(library, capability))
    before, after = library.read_bytes(), packed.read(0, packed.size)
    assert len(after) == len(before)
    for content in KERNELS.values():
        assert (content in after) == (chr(content[0]) in kept)
    assert sum(x != y for x, y in zip(before, after, strict=True)) == sum(
        len(content) for content in KERNELS.values() if chr(content[0]) not in kept
    )


def test_what_is_not_loaded_is_found_by_section_and_segment(tmp_path):
    library = tmp_path / "library.so"
    sections = [(".moved", 0, b"m" * 8), (".text", 2, b"t" * 8), (".symtab", 0, b"s" * 8)]
    library.write_bytes(make_elf(sections, loaded=121))
    ((start, stop),) = elf.unloaded(library)
    assert library.read_bytes()[start:stop] == b"s" * 8


def test_a_library_without_its_symbols_is_loaded(tmp_path):
    (library,) = pathlib.Path(kiwisolver.__file__).parent.glob("_cext*.so")
    packed = Member("x", library, 0o644, elf.unloaded(library))
    assert sum(stop - start for start, stop in packed.blank) > 1000
    copy = tmp_path / library.name
    copy.write_bytes(b"".join(packed.read(i, i + 999) for i in range(0, packed.size, 999)))
    assert copy.stat().st_size == packed.size
    assert ctypes.PyDLL(str(copy)).PyInit__cext


def test_an_empty_library_can_be_opened_and_is_then_found_by_name(tmp_path):
    (tmp_path / "anything.so").write_bytes(elf.empty_library("libof_the_test.so.11"))
    ctypes.CDLL(str(tmp_path / "anything.so"))
    with pytest.raises(AttributeError, match="undefined symbol: cufftPlan1d"):
        _ = ctypes.CDLL("libof_the_test.so.11").cufftPlan1d


def test_cuda_is_what_tensorflow_opens(tmp_path):
    with pytest.raises(ValueError, match="libcudart.so.11.0"):
        contents.cuda_libraries(tmp_path)
    libraries = {*contents.cuda._FOR_DEVICES, *contents.cuda._FOR_PROFILER, *contents._COMPILER}
    wanted = {f"nvidia/{name}" for name in libraries} | {"nvidia_x.dist-info/License.txt"}
    for name in wanted | {"nvidia/cudnn/lib/libcudnn.a", "nvidia/cudnn/include/cudnn.h"}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for whole in (False, True):
        packed = contents.cuda_libraries(tmp_path, whole=whole)
        assert {member.path.split("site-packages/")[1] for member in packed} == wanted
        empty = [member.path for member in packed if member.size]  # the others are empty files here
        assert len(empty) == (0 if whole else len(contents._LOOKED_FOR))


def test_what_is_left_out_of_the_locked_list_is_in_it():
    locked = contents.locked(contents.ROOT / "requirements" / "lock.txt")
    assert contents._NOT_OF_LOCK - set(locked) == set()


@pytest.mark.slow
def test_the_standard_library_is_packed_with_what_it_is_linked_to():
    packed = {member.path for member in contents.interpreter()}
    assert {"bin/python3.11", "lib/python3.11/os.py", "unpack.py", "launcher.sh"} <= packed
    assert {"libffi.so", "liblzma.so", "libz.so", "libstdc++.so"} <= {
        path[4:].partition(".so")[0] + ".so" for path in packed if path.startswith("lib/lib")
    }
    assert not any("libc.so" in path or "/test/" in path or ".pyc" in path for path in packed)


def test_the_repository_is_what_git_tracks():
    packed = {member.path for member in contents.repository()}
    assert {"tff_pfl_repo/tff_pfl/__init__.py", "tff_pfl_repo/README.md"} <= packed
    assert not any("/build/" in path or "gpu-pack/" in path for path in packed)


def test_a_data_set_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="has no data set mnist: name TFDS's folder"):
        contents.data_sets(tmp_path, ["mnist"])
