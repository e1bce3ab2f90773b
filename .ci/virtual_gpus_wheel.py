"""Make a wheel of the library of the virtual GPUs for the torch at hand, for machines that have no C++ compiler.

    python .ci/virtual_gpus_wheel.py FOLDER

The wheel's version is torch's, which it requires; `building.py` finds the library in it. It is for this version of
ddpsim, too: with another one, the library is built as if the wheel was not there.
"""

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch

from ddpsim.simulator.virtual_gpus.building import PACKAGE, build_device

PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "ddpsim-virtual-gpus"
version = "{version}"
description = "The virtual GPUs of ddpsim, built for one version of torch"
dependencies = ["torch=={version}"]

[tool.setuptools]
packages = ["{package}"]
package-data = {{ "*" = ["*.so"] }}

[tool.distutils.bdist_wheel]
plat-name = "{platform}"
"""


def main() -> None:
    """Build the library, and pack it into a wheel in the folder that is given."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    with tempfile.TemporaryDirectory() as project:
        package = Path(project, PACKAGE)
        package.mkdir()
        (package / "__init__.py").touch()
        shutil.copy(build_device(lambda: print("building the virtual GPUs")), package)
        text = PROJECT.format(version=torch.__version__, package=PACKAGE, platform=platform)
        Path(project, "pyproject.toml").write_text(text)
        pip_wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", sys.argv[1], project]
        subprocess.run(pip_wheel, check=True)


if __name__ == "__main__":
    main()
