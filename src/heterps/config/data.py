"""The data of a job: files, columns, batches and epochs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from heterps.config.base import Frozen, Name
from heterps.config.features import Features, check_features, sources_of
from heterps.config.format import Format
from heterps.config.labels import MAX_CLASSES, BinaryLabel, ClassLabel, Label
from heterps.config.storage import Storage, without_password
from heterps.config.validation import Split


class Schema(Frozen):
    """The roles of the columns, and what to do with missing values."""

    label: Name = Field(
        "label",
        description="Column of the label: 0 or 1, or the number of a class. With `labels`, the one of them whose "
        "metrics come first; by default the first.",
    )
    num_classes: Annotated[int, Field(ge=2, le=MAX_CLASSES)] = Field(
        2, description="Labels are 0 to num_classes - 1. With 2 classes the model returns one logit per sample."
    )
    labels: dict[Name, Label] = Field(
        {},
        description="Columns of labels of any kind, each with its loss, as in {rating: mse} or {click: {loss: binary, "
        "weight: 0.5}}. With several, the model returns a dict of outputs by these names.",
    )
    weight: Name | None = Field(
        None,
        description="Column of weights of samples, at least 0: a factor of a sample's loss, and its weight in metrics.",
    )
    user: Name | None = Field(
        None,
        description="Column of user ids (it may be a slot as well), by which test samples are ranked: GAUC, NDCG@k and "
        "hit rate@k. Training does not read it.",
    )
    top_k: tuple[PositiveInt, ...] = Field(
        (10,), description="Values of k of NDCG@k and hit rate@k, in rankings by `user`."
    )
    dense: tuple[Name, ...] = Field(
        tuple(f"I{i}" for i in range(1, 14)), description="Columns of numbers, or of lists of numbers (see widths)."
    )
    widths: dict[Name, PositiveInt] = Field(
        {},
        description="Length of the lists in dense columns that hold lists, as in {image: 3072}. Each number becomes "
        "one input of the model.",
    )
    slots: tuple[Name, ...] = Field(
        tuple(f"C{i}" for i in range(1, 27)), description="Columns of ids: integers or strings, or lists of them."
    )
    dense_missing: Literal["fill", "error", "skip"] = Field(
        "fill",
        description="What to do with a null or NaN in a dense column: fill it, stop with an error, or skip the row and "
        "count it.",
    )
    dense_fill: float = Field(0.0, description="Value that `dense_missing: fill` writes.")
    slot_missing: Literal["key", "error", "skip"] = Field(
        "key",
        description="What to do with a null in a slot: use a separate key for nulls, stop with an error, or skip the "
        "row and count it.",
    )
    same_ids: dict[Name, Name] = Field(
        {},
        description="Slots that hold the ids of another slot, as in {negative_item: item}. An id then has the same key "
        "in both slots, and the same row in an embedding of both.",
    )

    id_kinds: dict[Name, Literal["integer", "string"]] = Field(
        {},
        description='Kind of the ids of slots, as in {user: string}: 17 and "17" are different ids. Those that are not '
        "given are found on the training data, and hold for all data that the model is used on.",
    )
    features: Features = Field(
        {},
        description="Dense columns and slots that are made from columns of the data, as in {price: [log, standardise], "
        "hour: {column: time, steps: [{date: hour}]}, user_hour: {cross: [user, hour]}}.",
    )

    @property
    def all_labels(self) -> dict[str, Label]:
        """The labels by column: `labels`, or what `label` and `num_classes` mean."""
        if self.labels:
            return dict(self.labels)
        return {self.label: BinaryLabel() if self.num_classes == 2 else ClassLabel(num_classes=self.num_classes)}

    @property
    def target_columns(self) -> tuple[str, ...]:
        """The columns of Batch.label: all labels, then the weight if there is one."""
        return (*self.all_labels, *(() if self.weight is None else (self.weight,)))

    @property
    def decoded_columns(self) -> tuple[str, ...]:
        """All columns that are decoded, each once."""
        users = () if self.user is None else (self.user,)
        return tuple(dict.fromkeys((*self.target_columns, *self.dense, *self.slots, *users)))

    @property
    def num_dense(self) -> int:
        """Number of dense values per sample: the width of Batch.dense."""
        return sum(self.width_of(name) for name in self.dense)

    def width_of(self, name: str) -> int:
        """Number of values per sample in the dense column `name`."""
        return self.widths.get(name, 1)

    def ids_of(self, slot: str) -> str:
        """The slot whose ids `slot` holds: itself, unless `same_ids` names another."""
        return self.same_ids.get(slot, slot)

    @property
    def id_columns(self) -> tuple[str, ...]:
        """The slots, and the parts of crosses: what holds ids."""
        parts = (part for feature in self.features.values() for part in feature.cross)
        return tuple(dict.fromkeys((*self.slots, *parts)))

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns of the data whose ids are text, as far as kinds of ids are known."""
        return self.sources(name for name, kind in self.id_kinds.items() if kind == "string")

    def sources(self, names: Iterable[str]) -> tuple[str, ...]:
        """The columns of the data that hold these columns and features, each once."""
        return tuple(dict.fromkeys(source for name in names for source in sources_of(self.features, name)))

    def without_labels(self) -> Schema:
        """The same columns of samples that have no label (yet): labels, weights and users are not read."""
        fields = {name: getattr(self, name) for name in Schema.model_fields}
        return _Unlabelled.model_construct(**{**fields, "weight": None, "user": None})

    def with_features(self, features: Features) -> Schema:
        """The same columns with other features, such as those with fitted numbers."""
        return self.model_copy(update={"features": features})

    @model_validator(mode="before")
    @classmethod
    def _first_label(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("labels"), dict) and given["labels"]:
            return {"label": next(iter(given["labels"])), **given}
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        columns = [*self.target_columns, *self.dense, *self.slots]
        doubled = sorted({c for c in columns if columns.count(c) > 1})
        if doubled:
            raise ValueError(f"a column has one role only; named twice: {', '.join(doubled)}")
        if self.user in (*self.target_columns, *self.dense):
            raise ValueError(f"user: {self.user} has another role: it may be a slot as well, but not a number")
        if self.labels and self.label not in self.labels:
            raise ValueError(f"label: {self.label} must be one of the labels: {', '.join(self.labels)}")
        if self.labels and self.num_classes != 2:
            raise ValueError(
                "num_classes belongs to the label of those classes: "
                f"labels: {{{self.label}: {{loss: classes, num_classes: {self.num_classes}}}}}"
            )
        if not self.dense and not self.slots:
            raise ValueError("a schema needs at least one dense column or one slot")
        if strange := sorted(self.widths.keys() - set(self.dense)):
            raise ValueError(f"widths: {', '.join(strange)} must be among the dense columns: {', '.join(self.dense)}")
        for slot, other in self.same_ids.items():
            if slot not in self.slots or other not in self.slots:
                raise ValueError(f"same_ids: {slot}: {other} must be two of the slots: {', '.join(self.slots)}")
            if slot == other or other in self.same_ids:
                raise ValueError(f"same_ids: {slot}: {other} must lead to a slot with ids of its own")
        if strange := sorted(self.id_kinds.keys() - set(self.id_columns)):
            raise ValueError(f"id_kinds: {', '.join(strange)} must be among the slots: {', '.join(self.slots)}")
        check_features(self.features, self.dense, self.slots)
        return self


class _Unlabelled(Schema):
    """Columns without labels, for samples that are scored."""

    @property
    def target_columns(self) -> tuple[str, ...]:
        return ()


Address = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(without_password)]
Paths = Address | Annotated[tuple[Address, ...], Field(min_length=1)]


class Data(Frozen):
    """Training and test data, and how they are read."""

    train: Paths = Field(
        description="Files for training (Parquet, CSV, TSV, JSON lines, libsvm): a path, a folder, a glob, or a list; "
        "local, or any address that fsspec knows."
    )
    test: Paths | None = Field(None, description="Files for evaluation; null: no evaluation.")
    validation: Paths | Split | None = Field(
        None,
        description="Samples to validate with while training: files, or a share of the training data that is held out, "
        "as in {share: 0.05, by: user} or {share: 0.05, newest: time}; null: no validation.",
    )
    format: Format = Field(Format(), description="How files are read, where their names and contents do not say it.")
    storage: Storage = Field(Storage(), description="How files on S3 are reached, where the address does not say it.")
    columns: Schema = Field(Schema(), description="The roles of the columns, and what to do with missing values.")
    batch_size: PositiveInt = Field(4096, description="Number of samples per optimizer step.")
    epochs: PositiveInt = Field(1, description="Number of passes over the training data.")
    shuffle: bool = Field(
        True, description="Shuffle the row groups, and the rows inside each block of them, anew every epoch."
    )
    prefetch: PositiveInt = Field(4, description="Number of batches that are prepared ahead of use.")
