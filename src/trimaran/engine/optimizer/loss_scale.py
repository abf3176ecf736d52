"""Dynamic loss scaling for fp16: the loss is multiplied by a scale so that small gradients do not underflow."""

from trimaran.spec import LossScale


class LossScaler:
    """Megatron's rule: halve after `hysteresis` overflows, double after `window` good steps in a row. Without a
    specification (fp32, bf16) the scale is always 1."""

    def __init__(self, specification: LossScale | None) -> None:
        self.specification = specification
        self.scale = specification.initial if specification else 1.0
        self.left = specification.hysteresis if specification else 0  # overflows until the scale is halved
        self.good = 0  # steps since the last overflow or doubling

    @property
    def is_dynamic(self) -> bool:
        return self.specification is not None

    def update(self, finite: bool) -> None:
        rule = self.specification
        if rule is None:
            return
        if finite:
            self.good += 1
            if self.good == rule.window:
                self.scale, self.left, self.good = self.scale * 2, rule.hysteresis, 0
            return
        self.good = 0
        self.left -= 1
        if self.left <= 0:
            self.scale = max(self.scale / 2, rule.minimum)

    def state(self) -> dict[str, float]:
        return {"scale": self.scale, "left": self.left, "good": self.good}

    def restore(self, state: dict[str, float]) -> None:
        if self.is_dynamic and state:
            self.scale, self.left, self.good = state["scale"], int(state["left"]), int(state["good"])
