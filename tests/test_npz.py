"""Compressed arrays, as NumPy writes and reads them."""

import io
import zipfile

import numpy as np

from tests.federation import assert_equal
from tff_pfl.npz import save_compressed


def test_numpy_reads_what_it_would_have_written():
    arrays = {
        "ids": np.arange(1000),
        "fortran": np.asfortranarray(np.eye(3, 4, dtype=np.float32)),
        "number": 2.5,
        "text": "a format",
        "nobody": np.zeros([0, 2]),
    }
    ours, numpys = io.BytesIO(), io.BytesIO()
    save_compressed(ours, arrays)
    np.savez_compressed(numpys, **arrays)
    found, expected = (np.load(io.BytesIO(file.getvalue())) for file in (ours, numpys))
    assert found.files == expected.files
    for name in found.files:
        assert found[name].dtype == expected[name].dtype
        assert_equal(found[name], expected[name])
    ids = zipfile.ZipFile(ours).getinfo("ids.npy")
    assert ids.compress_size < ids.file_size / 4
    again = io.BytesIO()
    save_compressed(again, arrays)
    assert again.getvalue() == ours.getvalue()  # whenever it is written
