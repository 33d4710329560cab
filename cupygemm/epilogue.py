"""What a kernel does to the accumulators before it stores them: `Epilogue`.

    out = activation(alpha · (a · b) + bias + beta · residual)

all of it in fp32, rounded once to the dtype of the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from cupygemm.errors import ProblemError

NONE = "none"
BIASES = (NONE, "n", "m")
"""Of none, of one element a column (length n), of one a row (length m)."""
ACTIVATIONS = (NONE, "relu", "gelu", "gelu_tanh", "silu")
"""A new one goes to cuda_src too (`Activation` in config.cuh, `activated` in fusion.cuh) and to
cupygemm/measuring/verify.py (`activated` and `SLOPES`)."""


@dataclass(frozen=True)
class Epilogue:
    """Which terms an epilogue has; their values come with a launch.

    Attributes:
        bias: one of `BIASES`.
        residual: beta times a matrix of the result's shape is added.
        activation: one of `ACTIVATIONS`: "gelu" by the error function, "gelu_tanh" by its usual approximation.
        scaled: the product is multiplied by alpha, and nothing else; where there is another term, it is in any case.
    """

    bias: str = NONE
    residual: bool = False
    activation: str = NONE
    scaled: bool = False

    @classmethod
    def of(cls, *, bias: str = NONE, residual: bool = False, activation: str = NONE, alpha: float = 1.0) -> Self:
        """The epilogue with these terms; a factor of 1 by itself is none."""
        alone = bias == NONE and not residual and activation == NONE
        return cls(bias, residual, activation, scaled=alone and alpha != 1.0)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`.

        Raises:
            ProblemError: `text` is none that `str` gives.
        """
        parts = text.split("+")
        bias = next((kind for kind in BIASES[1:] if f"bias_{kind}" in parts), NONE)
        activation = next((name for name in ACTIVATIONS[1:] if name in parts), NONE)
        found = cls(bias, "residual" in parts, activation, "scaled" in parts)
        if str(found) != text or (found.scaled and found != cls(scaled=True)):
            raise ProblemError(
                f"epilogue is {text!r}: legal are 'none', 'scaled' (times alpha, alone), or some of bias_n (an element "
                f"a column) or bias_m (a row), residual, and one of {', '.join(ACTIVATIONS[1:])}, in this order and "
                "joined by '+'"
            )
        return found

    def __str__(self) -> str:
        terms = (
            "scaled" * self.scaled,
            "" if self.bias == NONE else f"bias_{self.bias}",
            "residual" * self.residual,
            "" if self.activation == NONE else self.activation,
        )
        return "+".join(filter(None, terms)) or NONE


def transposed(text: str) -> str:
    """The same epilogue of a product that is transposed as a whole: a bias a column becomes one a row."""
    epilogue = Epilogue.parse(text)
    return str(replace(epilogue, bias={NONE: NONE, "n": "m", "m": "n"}[epilogue.bias]))


def activation_code(name: str, real: str) -> str:
    """An activation of `x` as a C++ expression.

    Args:
        name: one of `ACTIVATIONS`.
        real: the type of `x`: "float" or "double".
    """
    f = "f" if real == "float" else ""
    return {
        NONE: "x",
        "relu": f"(x < 0.0{f} ? 0.0{f} : x)",
        "gelu": f"0.5{f} * x * (1.0{f} + erf{f}(x * 0.7071067811865476{f}))",
        "gelu_tanh": f"0.5{f} * x * (1.0{f} + tanh{f}(0.7978845608028654{f} * (x + 0.044715{f} * x * x * x)))",
        "silu": f"x / (1.0{f} + exp{f}(-x))",
    }[name]
