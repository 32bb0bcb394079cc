"""Makes tff_pfl installable. For development and for `make`, requirements/lock.txt is the list."""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "tff_pfl" / "__init__.py").read_text())[1]

# tensorflow-federated is missing here on purpose: it pins jaxlib==0.4.14, which the package
# registry no longer has, so that pip could resolve nothing. It comes with requirements/lock.txt.
INSTALL_REQUIRES = [
    "absl-py>=1.0,<2",
    "dm-tree>=0.1.8,<0.2",
    "grpcio>=1.62,<1.63",
    "jinja2>=3.1,<4",
    "lmdb>=1.4",
    "matplotlib>=3.8",
    "ml-collections>=1.0",
    "numpy>=1.25,<1.26",
    "optuna>=4,<5",
    "pandas>=2.1,<3",
    "pyarrow>=14,<17",
    "scikit-learn>=1.5,<1.6",
    "scipy>=1.9.3,<1.10",
    "tensorboard>=2.14,<2.15",
    "tensorflow>=2.14,<2.15",
    "tensorflow-datasets>=4.9,<5",
    "tqdm>=4.66",
    "xxhash>=3,<5",
]

# What examples/notebooks imports and needs to be opened; ipywidgets draws the progress bars.
NOTEBOOKS = ["ipykernel>=6.29,<7", "ipywidgets>=8.1,<9", "jupytext>=1.16,<2", "seaborn>=0.13,<1"]

# The newest that take TFF's typing-extensions 4.5 and TensorFlow's protobuf 4.
WANDB = ["pydantic>=1.10,<2", "wandb>=0.19,<0.20"]
MLFLOW = ["mlflow-skinny>=2.14,<2.21", "pydantic>=1.10,<2"]

setuptools.setup(
    name="tff_pfl",
    version=VERSION,
    description="Personalized federated learning on TensorFlow Federated",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.12",
    packages=setuptools.find_namespace_packages(include=["tff_pfl", "tff_pfl.*"]),
    package_data={"tff_pfl": ["py.typed"], "tff_pfl.analysis": ["page.html"]},
    install_requires=INSTALL_REQUIRES,
    extras_require={"mlflow": MLFLOW, "notebooks": NOTEBOOKS, "wandb": WANDB},
)
