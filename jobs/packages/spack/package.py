from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PySsmpi(PythonPackage):
    """Train click-through-rate models on CPU clusters as one MPI job, with
    synchronization in the background (ShadowSync)."""

    homepage = "URL-OF-THIS-REPOSITORY"
    git = "URL-OF-THIS-REPOSITORY"

    license("MIT")

    version("develop", branch="main")

    depends_on("py-setuptools@77:", type="build")

    with default_args(type=("build", "run")):
        depends_on("python@3.11:")
        depends_on("py-mpi4py@4.1:4")
        depends_on("py-torch@2.8:2")
        depends_on("py-numpy@2.1:2")
        depends_on("py-h5py@3.14:3")
        depends_on("py-numba@0.62:0.68")
        depends_on("py-tqdm@4.66:")
        depends_on("py-tomli-w@1.1:")

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def doctor(self):
        """One rank: the kernels compile, and the versions fit."""
        Executable(self.prefix.bin.ssmpi)("doctor")
