"""Data: the data set of a Job, document boundaries, and which tokens count in the loss."""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from trimaran.spec.base import Spec
from trimaran.spec.bounds import Quantity
from trimaran.spec.mistake import shortened


class Data(Spec):
    source: str | dict[str, Quantity] = Field(
        "synthetic", description="'synthetic', the path of a prepared data set, or several paths with blend weights."
    )
    validation: float = Field(0.01, ge=0, lt=1, description="Share of the documents, the last ones, held out.")
    documents: Literal["joined", "apart"] = Field(
        "joined", description="apart: attention and positions are reset at document boundaries (a block-diagonal mask)."
    )
    prefix: Literal["row", "document"] = Field(
        "row", description="For a prefix LM: a prefix length is drawn per row (sample), or per document."
    )
    loss_on: Literal["targets", "all"] = Field(
        "targets", description="For a prefix LM: the loss covers only the tokens after the prefix, or all."
    )

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, values: Any) -> Any:
        return expand_source(values)

    @field_validator("source", mode="before")
    @classmethod
    def _check_weights(cls, source: Any) -> Any:
        if isinstance(source, dict):
            if not source:
                raise ValueError("the source of data is an empty mapping; name at least one path and its weight.")
            for path, weight in source.items():
                number = isinstance(weight, int | float) and not isinstance(weight, bool)
                if not number or not 0 < weight < float("inf"):
                    raise ValueError(
                        f"the weight of {path} in data.source is {shortened(weight)}, but must be a number over 0."
                    )
        elif not isinstance(source, str):
            raise ValueError(
                f"data.source is {shortened(source)}, but must be a path, or paths with weights: {{wiki: 0.7, …}}."
            )
        return source

    @model_validator(mode="after")
    def _check_prefix(self) -> Self:
        if self.prefix == "document" and self.documents == "joined":
            raise ValueError(
                "a prefix for every document needs documents apart, but they are joined, so a row does not know where"
                " they end; the nearest that works: documents apart (or prefix row)."
            )
        return self


def expand_source(values: Any) -> Any:
    """A bare string is the source: `data: synthetic`, as in every Job file written before Data had other fields."""
    return {"source": values} if isinstance(values, str) else values
