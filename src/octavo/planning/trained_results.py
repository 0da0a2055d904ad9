"""Results of a trained model: by trained parameters, behind a clamp that these replace, or measured."""

from __future__ import annotations

import onnx_ir as ir

from octavo.core.plan import Entry, Key, Measured, Shared
from octavo.core.qtypes import INT8, UINT8
from octavo.core.scheme import Scheme
from octavo.model import query
from octavo.ops.hooks import clamp_bounds
from octavo.planning import hazards
from octavo.planning.trained_biases import Biases
from octavo.targets import Target


class Results(Biases):
    """A state that can place results; with ``data`` missing ranges can be measured."""

    target: Target
    data: bool

    def output(self, node: ir.Node, *, optional: bool) -> bool:
        """Whether the node's result has parameters, trained or measured.

        They are measured where the target, or the spelling (not ``optional``), can't do without.
        """
        value = self._behind_clamp(node.outputs[0])
        if Key(value.name or "") in self.entries:
            return True
        needed = node.op_type in self.target.needs_output or not optional
        if not (self.data and needed):
            return False
        read = [p.qtype for v in node.inputs if (p := self.params(self.key(v, node))) is not None]
        scheme = Scheme(INT8 if read[:1] == [INT8] else UINT8)
        self.entries[Key(self._clamped(value, Measured(scheme)).name or "")] = Measured(scheme)
        return True

    def _behind_clamp(self, value: ir.Value) -> ir.Value:
        """The output of a Relu or Clip whose work the trained range behind it does; the clamp goes."""
        clamp = query.only_reader(value)
        if clamp is None or clamp.op_type not in ("Relu", "Clip") or clamp.domain:
            return value
        entry = self.entries.get(self.root(Key(clamp.outputs[0].name or "")))
        return self._clamped(value, entry) if entry is not None else value

    def _clamped(self, value: ir.Value, entry: Entry) -> ir.Value:
        clamp = query.only_reader(value)
        own = self.entries.get(Key(value.name or ""))
        if clamp is None or clamp.op_type not in ("Relu", "Clip") or clamp.graph is not value.graph:
            return value
        bounds, output = clamp_bounds(clamp), clamp.outputs[0]
        if clamp.name in self.refused or bounds is None or bounds[0] != 0.0 or bounds[1] <= 0.0:
            return value
        if not hazards.holds_clamp(entry, bounds[1]):
            return value
        if own is not None and own != Shared(output.name or ""):
            if not self._alike(value, output):
                return value
            self._hand_on(Key(value.name or ""), Key(output.name or ""))
        self.entries.pop(Key(value.name or ""), None)
        self.absorbed[clamp.name or ""] = f"the trained range of {output.name} starts at zero as it does"
        return output

    def _alike(self, value: ir.Value, output: ir.Value) -> bool:
        """Whether a clamp reads and makes what has the same parameters."""
        before, after = (self.params(Key(v.name or "")) for v in (value, output))
        return before is not None and after is not None and before.same_as(after)

    def _hand_on(self, before: Key, after: Key) -> None:
        """Let what has the parameters of one key have those of the other, which are the same."""
        root = self.root(before)
        self.entries[after], self.known[after] = self.entries[root], self.known[root]
        for key, entry in self.entries.items():
            if isinstance(entry, Shared) and entry.key == before:
                self.entries[key] = Shared(*after)
