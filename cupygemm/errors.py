"""The exception tree: everything cupygemm raises on purpose derives from `CupygemmError`."""


def not_installed(what: str, extra: str) -> str:
    """What to say of a package that is missing; the project is on no index, so there is no name to install it by."""
    return f"{what} is not installed: install the extra `{extra}` (pip install '.[{extra}]' in a checkout)"


class CupygemmError(Exception):
    """Base of every error that cupygemm raises on purpose."""


class ProblemError(CupygemmError, ValueError):
    """The matrix product asked for is malformed (shapes, dtypes, layout)."""


class ConfigError(CupygemmError, ValueError):
    """A kernel config, knob or search space is illegal or unknown."""


class SettingError(CupygemmError, ValueError):
    """An environment variable of cupygemm's has a value that means nothing."""


class CompileError(CupygemmError, RuntimeError):
    """NVRTC refused a kernel.

    Attributes:
        log: the compiler's whole log.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class LaunchError(CupygemmError, RuntimeError):
    """The CUDA driver, cuBLAS or the GPU itself refused or broke off a call."""


class CaptureError(CupygemmError, RuntimeError):
    """Something that a CUDA graph cannot capture was asked for while one is being captured."""


class VerificationError(CupygemmError, RuntimeError):
    """A kernel's result is outside the error bounds."""


class FileError(CupygemmError, ValueError):
    """A file of cupygemm's (a recorded table, a trial store, results, a document) is not what it claims to be."""


class BundleError(FileError):
    """A YAML bundle cannot be read, or cannot be what it claims to be."""
