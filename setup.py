"""Makes tff_pfl installable. `make` installs requirements/lock.txt instead of these lists."""

import pathlib
import re
import shutil

import setuptools
from setuptools.command.build import build

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "tff_pfl" / "__init__.py").read_text())[1]

README = (ROOT / "README.md").read_text()
RELATIVE_LINK = r"!?\[([^]]*)\]\((?!https?:)[^)]*\)"  # which holds in a clone alone

# The requirements of TFF 0.87, with the jax of requirements/overrides.txt. TFF itself is missing on
# purpose: the package registry no longer has the jaxlib that it pins, so that pip could resolve
# nothing. `pip install --no-deps tensorflow-federated==0.87.0` adds it.
TFF_REQUIRES = [
    "absl-py>=1.0,==1.*",
    "attrs~=23.1",
    "cachetools~=5.3",
    "dm-tree==0.1.8",
    "dp-accounting==0.4.3",
    "google-vizier==0.1.11",
    "googleapis-common-protos==1.61.0",
    "jax==0.4.23",
    "jaxlib==0.4.23",
    "ml-dtypes>=0.2.0,==0.2.*",
    "portpicker~=1.6",
    "scipy~=1.9.3",
    "tensorflow>=2.14.0,==2.14.*",
    "tensorflow-model-optimization==0.7.5",
    "tensorflow-privacy==0.9.0",
    "tqdm~=4.64",
    "typing-extensions>=4.5.0,==4.5.*",
]

# requirements/direct.in says why a version is bounded.
INSTALL_REQUIRES = [
    "distributed>=2024.1",
    "grpcio~=1.46,>=1.62,<1.63",
    "grpcio-tools>=1.62,<1.63",  # of TFF's google-vizier: pip would try all later ones before
    "importlib-resources>=6",
    "jinja2>=3.1,<4",
    "lmdb>=1.4",
    "matplotlib>=3.8",
    "ml-collections>=1.0",
    "numpy~=1.25,<1.26",
    "optuna>=4,<5",
    "pandas>=2.1,<3",
    "pyarrow>=14,<17",
    "safetensors>=0.4,<1",
    "scikit-learn>=1.5,<1.6",
    "setuptools>=70,<80",
    "tensorboard>=2.14,<2.15",
    "tensorflow-datasets>=4.9,<5",
    "tensorflow-metadata==1.17.3",
    "xxhash>=3,<5",
]

# What examples/notebooks imports and needs to be opened; ipywidgets draws the progress bars.
NOTEBOOKS = [
    "ipykernel>=6.29,<7",
    "ipython>=8.20,<8.23",
    "ipywidgets>=8.1,<9",
    "jupytext>=1.16,<2",
    "seaborn>=0.13,<1",
]

# The newest that take TFF's typing-extensions 4.5 and TensorFlow's protobuf 4.
WANDB = ["pydantic>=1.10,<2", "wandb>=0.19,<0.20"]
MLFLOW = ["mlflow-skinny>=2.14,<2.21", "pydantic>=1.10,<2"]

# The folders of a clone that a wheel has inside of the package; see `tff_pfl.shipped`.
SHIPPED = {
    "tff_pfl.configs": "configs",
    "tff_pfl.configs.studies": "configs/studies",
    "tff_pfl.programs": "programs",
}

CLASSIFIERS = [
    "Development Status :: 4 - Beta",
    "Intended Audience :: Developers",
    "Intended Audience :: Science/Research",
    "License :: OSI Approved :: Apache Software License",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3.11",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Typing :: Typed",
]


class CleanBuild(build):
    """Builds without the files of a former build, which may have been deleted since."""

    def run(self):
        """Builds the package."""
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setuptools.setup(
    name="tff_pfl",
    version=VERSION,
    description="Personalized federated learning on TensorFlow Federated",
    long_description=re.sub(RELATIVE_LINK, r"\1", README),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    classifiers=CLASSIFIERS,
    cmdclass={"build": CleanBuild},
    python_requires=">=3.11,<3.12",
    packages=[
        *setuptools.find_namespace_packages(include=["tff_pfl", "tff_pfl.*"]),
        *SHIPPED,
    ],
    package_dir=SHIPPED,
    entry_points={"console_scripts": ["tff-pfl = tff_pfl.__main__:main"]},
    package_data={"tff_pfl": ["py.typed"], "tff_pfl.analysis": ["page.html"]},
    install_requires=TFF_REQUIRES + INSTALL_REQUIRES,
    extras_require={"mlflow": MLFLOW, "notebooks": NOTEBOOKS, "wandb": WANDB},
)
