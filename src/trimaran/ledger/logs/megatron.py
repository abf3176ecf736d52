"""The reader of Megatron-LM's and Megatron-DeepSpeed's logs: an iteration per line, fields between bars.

Ranks print over each other, jobs are killed in the middle of a line, one file holds several runs. A line counts
only when it is complete, once, and for the run it belongs to; whatever cannot be used is listed with the reason.
"""

import math
import re
from collections.abc import Iterable

from trimaran.export.argument_dump import parse_argument
from trimaran.ledger.logs import fields
from trimaran.ledger.logs.arguments import KNOWN, remarks_of, setup_of
from trimaran.ledger.logs.fields import ELAPSED, IterationParser
from trimaran.ledger.logs.prefix import date_of, label_of, split_label, without_colour
from trimaran.ledger.logs.run import LoggedRun, LogReader, PeakMemory, trial_of
from trimaran.ledger.logs.usable import usable
from trimaran.ledger.reading import Reading
from trimaran.spec import Setup, Trial

_HEAD = re.compile(r"\biteration +\d+/ *\d+ *\|")
_HEAD_BEGUN = re.compile(r"\biteration +\d+(?:$|/ *\d* *(?:$|\|))")
_DUMP = re.compile(r"\b(?:tensor_model_parallel_size|hidden_size|micro_batch_size) \.{2,} \d")
_MEMORY = re.compile(r"\[Rank (\d{1,9})\] \(after (\d{1,12}) iterations\) memory \(MB\)")
_RESERVED = re.compile(r"\| max reserved: *(\d+(?:\.\d+)?)")
_PADDED = re.compile(r"padded vocab .*\(new size: (\d+)\)")
_DEEPSPEED_FIELDS = ("| consumed tokens:", "| samples per second:", "| TFLOPs:")


def is_megatron(head: str) -> bool:
    return _HEAD.search(head) is not None or ELAPSED in head or _DUMP.search(head) is not None


def read_megatron(lines: Iterable[str], file: str) -> Reading:
    return _MegatronReader(file).read(lines)


class _MegatronReader(LogReader):
    def __init__(self, file: str) -> None:
        super().__init__(file)
        self._dumping = False
        self._next_memory = PeakMemory()  # of a run that has reported memory, but no iteration yet
        self._parser = IterationParser()

    def read(self, lines: Iterable[str]) -> Reading:
        previous, at = "", 0
        for at, line in enumerate(lines):  # one line behind: only the last one may be truncated
            if ELAPSED in previous:
                self._take_iterations(at, previous)
            else:
                self._take_other(at, previous)
            previous = line
        self._take_last(at + 1, previous)
        if self._run:
            self._run.memory.join(self._next_memory)
        return self._reading("arguments", "arguments without an iteration and without a failure after them")

    def _take_last(self, at: int, line: str) -> None:
        text = without_colour(line)
        if line.endswith("\n"):
            (self._take_iterations if ELAPSED in line else self._take_other)(at, line)
        elif ELAPSED in text:
            self._take_pieces(at, text)
        elif _HEAD_BEGUN.search(text):
            self._list_unread(at, text, "the line is truncated before its time")
        elif "memory (MB)" in text and not text.endswith(".0"):  # reserved blocks are multiples of a megabyte
            self._list_unread(at, text, "the line is truncated in its memory")
        elif parse_argument(split_label(text)[1]) is None:
            self._take_other(at, line)

    # --- lines with an iteration

    def _take_iterations(self, at: int, line: str) -> None:
        text = without_colour(line).rstrip()
        start = text.find("iteration ")
        prefix = text[:start]
        if text.endswith("|") and text.find(ELAPSED, start) == text.rfind(ELAPSED) and "|" not in prefix:
            self._take_iteration(at, prefix, text[start:])
        else:
            self._take_pieces(at, text)

    def _take_pieces(self, at: int, text: str) -> None:
        """A line that several ranks wrote, or that is truncated: every complete iteration in it."""
        heads = [head.start() for head in _HEAD.finditer(text)]
        if not heads:
            self._list_unread(at, text, "it has a time per iteration, but not which iteration")
        end = 0
        for start, limit in zip(heads, [*heads, len(text)][1:], strict=True):
            prefix, piece = text[end:start], text[start:limit]
            end = start + self._whole_length(piece)
            if end == start:
                self._list_unread(at, piece, "the line is truncated: its last fields are missing")
            else:
                self._take_iteration(at, prefix, text[start:end])
        if "memory (MB)" in text:
            self._take_memory(at, text)
        self._look_for_failure(at, text[end:])

    def _whole_length(self, piece: str) -> int:
        """Where the iteration ends, 0 if it does not: its last field is the one that closed the lines before it."""
        known = self._run.last_text if self._run else ""
        if known:
            closing = known[known.rfind("|", 0, -1) :].partition(":")[0] + ":"
        elif "(ms)" in piece and "| consumed tokens:" not in piece:
            closing = "| number of nan iterations:"  # Megatron-LM ends here; Megatron-DeepSpeed has more
        else:
            closing = "| TFLOPs:"
        begin = piece.find(closing)
        return piece.find("|", begin + 1) + 1 if begin >= 0 else 0

    def _take_iteration(self, at: int, prefix: str, text: str) -> None:
        try:
            number, total, batch, skipped, nan, seconds, tflops, loss = self._parser.parse(text)
        except ValueError as error:
            self._list_unread(at, prefix + text, str(error))
            return
        run = self._run_of(at, number, total, prefix, text)
        if run is None:
            return
        run.add(number, seconds, batch, tflops, text)
        if loss is not None:
            run.loss = loss  # nan is a legal loss
        if skipped or nan:
            run.skipped = (run.skipped or 0) + skipped
            run.nan = (run.nan or 0) + nan

    def _run_of(self, at: int, iteration: int, total: int, prefix: str, text: str) -> LoggedRun | None:
        """The run an iteration belongs to; None when another rank has printed it before."""
        run = self._run
        if run is not None and run.numbers and total == run.total:
            if iteration > run.numbers[-1]:
                return run
            if _is_repeated(run, iteration, label_of(prefix), text):
                return None
        if run is None or run.numbers:
            run = self._new_run(at)
        self._dumping = False
        run.begin(at, text, label_of(prefix), date_of(prefix), total)
        run.varying_length = "| curriculum seqlen:" in text
        run.skipped = 0 if "skipped iterations:" in text else None
        run.nan = 0 if "nan iterations:" in text else None
        return run

    def _new_run(self, at: int) -> LoggedRun:
        run = super()._new_run(at)
        run.memory, self._next_memory = self._next_memory, PeakMemory()
        return run

    # --- all other lines

    def _take_other(self, at: int, line: str) -> None:
        line = without_colour(line)
        if "memory (MB)" in line:
            self._take_memory(at, line)
        elif "iteration " in line and _HEAD.search(line):
            self._list_unread(at, line, "the line is truncated before its time")
        elif "[after training is done]" in line and self._run:
            self._run.finished = True
        elif not ((" ..." in line or " arguments -" in line) and self._is_argument(at, line)):
            self._look_for_failure(at, line)
            if "padded vocab" in line:
                self._take_vocabulary(line)

    def _take_memory(self, at: int, line: str) -> None:
        heads = list(_MEMORY.finditer(line))
        limits = [*(head.start() for head in heads), len(line)][1:]
        for head, limit in zip(heads, limits, strict=True):
            reserved = _RESERVED.search(line, head.end(), limit)
            mib = float(reserved[1]) if reserved else math.nan
            if not 0 <= mib < math.inf:
                self._list_unread(at, line[head.start() : limit], "it has no usable 'max reserved'")
            elif mib > 0:  # 0 is printed where the device is not PyTorch's own
                rank, after = int(head[1]), int(head[2])
                known = self._run.memory if self._run else self._next_memory
                memory = self._next_memory if known.is_of_another_run(rank, after, mib) else known
                memory.add(rank, after, mib)

    def _is_argument(self, at: int, line: str) -> bool:
        """Reads a line of the dump. Its values may be paths, so it is not searched for failures."""
        if "- arguments -" in line:
            self._dumping = False
            self._run_of_arguments(at)
            self._dumping = True
        elif " end of arguments -" in line:
            self._dumping = False
        elif found := parse_argument(split_label(line)[1]):
            if found[0] in KNOWN:
                self._run_of_arguments(at)[found[0]] = found[1]
        else:
            return False
        return True

    def _take_vocabulary(self, line: str) -> None:
        """Printed after the dump, which has only the tokenizer's own size, or none."""
        padded = _PADDED.search(line)
        if padded and self._run and not self._run.numbers:
            self._run.arguments["padded_vocab_size"] = padded[1]

    def _run_of_arguments(self, at: int) -> dict[str, str]:
        """A dump begins a new run, unless the last run has no outcome yet. Other ranks may write into the dump."""
        run = self._run
        if run is None or run.numbers or (run.has_outcome and not self._dumping):
            run = self._new_run(at)
        return run.arguments

    # --- the end

    def _trial(self, run: LoggedRun, several: bool) -> Trial:
        arguments = run.arguments
        run.notes += remarks_of(arguments)
        deepspeed = "deepspeed" in arguments or any(name in run.text for name in _DEEPSPEED_FIELDS)
        framework = arguments.get("framework") or ("megatron-deepspeed" if deepspeed else "megatron-lm")
        setup = setup_of(arguments).replace(framework=framework)
        if setup.seq_len is None and run.text and not run.varying_length:
            length = fields.tokens_per_sample(run.text, run.last_text)
            setup = usable(Setup, {**setup.model_dump(), "seq_len": length})
        if run.varying_length:
            run.notes.append("A curriculum changes the sequence length: tokens per second are not known.")
        return trial_of(run, self._file, setup, None if framework == "megatron-deepspeed" else "model", several)


def _is_repeated(run: LoggedRun, iteration: int, label: str, text: str) -> bool:
    """Whether another rank has printed this. A rank does not repeat itself: that is a new start."""
    if label and label == run.label:
        return False
    if run.has_printed(iteration, text):
        return True
    return iteration == run.numbers[-1] and fields.is_same_iteration(text, run.last_text)
