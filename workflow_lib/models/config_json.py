"""Reads a ``config.json`` of Hugging Face key by key, so that no key is ignored unnoticed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from workflow_lib.records.files import read_json
from workflow_lib.records.reading import RecordError, shown

#: keys that do not change what a model computes from tokens to logits; most are fields of every
#: model's configuration in transformers (PreTrainedConfig, version 4)
_WITHOUT_EFFECT = frozenset(
    (
        *("_name_or_path", "_commit_hash", "_attn_implementation", "transformers_version"),
        *("_num_labels", "num_labels", "tf_legacy_loss", "is_decoder"),
        *("model_type", "torch_dtype", "dtype", "use_bfloat16", "torchscript"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id"),
        *("decoder_start_token_id", "tokenizer_class", "prefix", "task_specific_params"),
        *("use_cache", "return_dict", "output_attentions", "output_hidden_states"),
        *("output_router_logits", "chunk_size_feed_forward", "gradient_checkpointing"),
        *("id2label", "label2id", "problem_type", "finetuning_task", "classifier_dropout"),
        # Options of text generation; see generation_config.json.
        *("max_length", "min_length", "do_sample", "num_beams", "temperature", "top_k", "top_p"),
        *("repetition_penalty", "length_penalty", "no_repeat_ngram_size", "early_stopping"),
        *("num_beam_groups", "diversity_penalty", "typical_p", "encoder_no_repeat_ngram_size"),
        *("bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate"),
        *("forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values"),
        *("exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens"),
        # nanotron's, which tells its formats apart: SmolLM2 has it.
        "is_llama_config",
        # Products are cut into slices that give the same sum.
        "pretraining_tp",
    )
)
_DROPOUTS = {
    *("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"),
    *("residual_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob"),
}
#: standard deviation of the engine's initial weights
_INITIALIZER_RANGE = 0.02
#: ends of the names of architectures that predict the next token
_LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "Model")


class ImportRefusedError(ValueError):
    """A model that cannot be imported; the message names the key and why."""


class ConfigJson:
    """A configuration whose keys are taken one by one; a key that is not taken is an error.

    A key that is null counts as missing.
    """

    def __init__(self, path: Path, ignored: Collection[str] = ()) -> None:
        """Read ``path``, a ``config.json`` or a directory with one.

        ``ignored`` are keys that, by the importing user, do not change what the model computes.
        Raises OSError and RecordError.
        """
        self.path = path / "config.json" if path.is_dir() else path
        plain = read_json(self.path)
        if not isinstance(plain, dict):
            raise RecordError(f"{self.path}: expected an object, found {type(plain).__name__}")
        self._stated = frozenset(plain)
        self._values = {key: value for key, value in plain.items() if value is not None}
        self._taken: set[str] = set()
        self._ignored = frozenset(ignored)
        #: sentences that a reader of the model file should know
        self.notes: list[str] = []

    def refuse(self, key: str, why: str) -> ImportRefusedError:
        """The error for a key whose value the engine does not support."""
        return ImportRefusedError(f"{self.path}: {key}: {why}")

    def states(self, key: str) -> bool:
        """Whether a key is in the file, even if it is null."""
        return key in self._stated

    def take(self, key: str, default: Any = None) -> Any:
        """A value of any type; ``default`` if it is missing."""
        self._taken.add(key)
        return self._values.get(key, default)

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number above 0."""
        value = self._required(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refuse(key, f"is {shown(value)}, expected a whole number above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        return self.as_number(key, self._required(key, default))

    def as_number(self, key: str, value: object) -> float:
        """A value of a key, as a number above 0."""
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self.refuse(key, f"is {shown(value)}, expected a number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, f"is {shown(value)}, expected true or false")
        return value

    def word(self, key: str, default: str) -> str:
        """A text."""
        value = self.take(key, default)
        if not isinstance(value, str):
            raise self.refuse(key, f"is {shown(value)}, expected a text")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        """An object without its null values; an empty one if it is missing."""
        value = self.take(key, {})
        if not isinstance(value, dict):
            raise self.refuse(key, f"is {shown(value)}, expected an object")
        return {name: part for name, part in value.items() if part is not None}

    def must_be(self, key: str, allowed: object, why: str) -> None:
        """Refuse a key with another value than ``allowed``; a missing key counts as ``allowed``."""
        value = self.take(key, allowed)
        if value != allowed or isinstance(value, bool) != isinstance(allowed, bool):
            raise self.refuse(key, f"is {shown(value)}, and {why}")

    def _required(self, key: str, default: Any) -> Any:
        value = self.take(key, default)
        if value is None:
            raise self.refuse(key, "is missing, and it has no default")
        return value

    def finish(self) -> None:
        """Check the keys that the model's own reader did not take.

        Raises ImportRefusedError for a key that may change what the model computes.
        """
        self.must_be("is_encoder_decoder", False, "only decoders can be trained")
        self.must_be("tie_encoder_decoder", False, "only decoders can be trained")
        self.must_be("add_cross_attention", False, "it is not implemented")
        self.must_be("pruned_heads", {}, "all layers have the same heads")
        if self.take("auto_map"):
            self.notes.append(
                "auto_map names code beside the file: the model is that of transformers' own "
                f"{self.take('model_type')}, not of that code"
            )
        if "quantization_config" in self._values:
            raise self.refuse(
                "quantization_config",
                "the weights are quantised, and the engine trains in bf16 or fp32; use the "
                "config.json of the model that was quantised",
            )
        for name in self.take("architectures", []):
            if not str(name).endswith(_LANGUAGE_MODELS):
                raise self.refuse(
                    "architectures", f"{shown(name)} does not predict the next token of a text"
                )
        for key in sorted(_DROPOUTS & self._values.keys()):
            if value := self.take(key):
                self.notes.append(f"{key} is {shown(value)}: the engine trains without dropout")
        deviation = self.take("initializer_range", _INITIALIZER_RANGE)
        if deviation != _INITIALIZER_RANGE:
            self.notes.append(
                f"initializer_range is {shown(deviation)}: the engine draws its initial weights "
                f"with {_INITIALIZER_RANGE}"
            )
        left = sorted(self._values.keys() - self._taken - _WITHOUT_EFFECT)
        if unknown := [key for key in left if key not in self._ignored]:
            raise self.refuse(
                unknown[0],
                f"is {shown(self._values[unknown[0]])}, and this import does not know whether that "
                f"changes what the model computes; if it does not, pass --ignore {unknown[0]}"
                + (f" (so also {', '.join(unknown[1:])})" if unknown[1:] else ""),
            )
        self.notes += [
            f"{key} is {shown(self._values[key])}: left out, as --ignore {key} asked"
            for key in left
        ]
