"""One loop for all drafts. Processes, hosts and devices are `accelerate`'s business: every process takes its share of
each step's rows, and gradients are those of the whole step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast

from draft_service.training.checkpoint import Position, RunFolder
from draft_service.training.draft import Draft
from draft_service.training.evaluation import Evaluation, evaluate
from draft_service.training.rows import Rows, chosen_rows
from draft_service.training.schedule import Schedule

CLIP = 1.0  # largest norm of a gradient


@dataclass(frozen=True, slots=True)
class Plan:
    """steps, minutes: whichever is reached first ends the run, None: no limit. batch: rows per step, of all processes
    together. every: steps between evaluations, each with a checkpoint. eval_tokens: held-out ones each is made on.
    judged_steps: draft tokens in a row that are judged."""

    schedule: Schedule
    seed: int
    batch: int
    steps: int | None
    minutes: float | None
    every: int
    eval_tokens: int
    judged_steps: int

    def progress(self, position: Position) -> float:
        """From 0 to 1."""
        parts = [0.0]
        if self.steps is not None:
            parts.append(position.step / max(1, self.steps))
        if self.minutes is not None:
            parts.append(position.seconds / (60 * self.minutes))
        return min(1.0, max(parts))


@dataclass(frozen=True, slots=True)
class Report:
    """What a step has to tell: loss per judged token, tokens per second since the last report of its kind."""

    position: Position
    progress: float
    loss: float
    evaluation: Evaluation | None


class Trainer:
    """draft: an `nn.Module` on the accelerator's device. head: [C, H], what it is judged through."""

    def __init__(
        self, draft: Draft, head: torch.Tensor, train: Rows, held: Rows, plan: Plan, folder: RunFolder,
        accelerator: Accelerator
    ) -> None:  # fmt: skip
        self._draft, self._head = draft, head
        self._train, self._held, self._plan, self._folder = train, held, plan, folder
        self._accelerator = accelerator
        module = cast(torch.nn.Module, draft)
        self._module = module
        self._optimizer = torch.optim.AdamW(module.parameters(), lr=plan.schedule.rate, betas=(0.9, 0.95), fused=True)
        self.position = folder.load(module, self._optimizer, accelerator.device)
        self._replica: Any = accelerator.prepare(module) if accelerator.num_processes > 1 else module

    def run(self, tell: Callable[[Report], None], stopped: Callable[[], bool] = lambda: False) -> bool:
        """Until the plan is fulfilled, or `stopped` at the end of a step, for a single process with a checkpoint.
        Returns whether the plan is fulfilled."""
        plan = self._plan
        curve = self._folder.curve
        evaluated, losses = curve[-1]["step"] if curve else -1, []
        while (progress := self._progress()) < 1:
            began = time.monotonic()
            loss, judged = self._step(progress)
            losses.append(loss)
            self.position = Position(
                self.position.step + 1, self.position.seconds + time.monotonic() - began, self.position.tokens + judged
            )
            evaluation = None
            if self.position.step % plan.every == 0:
                evaluation, evaluated = self._evaluate(losses), self.position.step
                losses.clear()
            tell(Report(self.position, plan.progress(self.position), loss, evaluation))
            if stopped():
                if self._accelerator.num_processes == 1:
                    self._folder.save(self._module, self._optimizer, self.position)
                return False
        if evaluated != self.position.step:
            self._evaluate(losses)
        return True

    def _progress(self) -> float:
        """The same in all processes, whose clocks differ."""
        progress = self._plan.progress(self.position)
        if self._accelerator.num_processes == 1 or self._plan.minutes is None:
            return progress
        shared: Any = broadcast(torch.tensor([progress], device=self._accelerator.device))
        return float(shared.item())

    def _step(self, progress: float) -> tuple[float, int]:
        """Loss per judged token of this process' share; judged tokens of all."""
        plan, step = self._plan, self.position.step
        rows = chosen_rows(plan.seed, step, plan.batch, len(self._train))
        share = rows[self._accelerator.process_index :: self._accelerator.num_processes]
        judged = max(1, self._train.num_judged(rows))
        for group in self._optimizer.param_groups:
            group["lr"] = plan.schedule.rate_at(step, progress)
        batch = self._train.batch(share).to(self._accelerator.device)
        # Replicas average their gradients; so that the sum over all rows is divided by the tokens of all rows.
        loss = self._replica(batch, plan.schedule.mix_at(progress)) * (self._accelerator.num_processes / judged)
        self._accelerator.backward(loss)
        torch.nn.utils.clip_grad_norm_(self._module.parameters(), CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(loss.detach()), judged

    def _evaluate(self, losses: Sequence[float]) -> Evaluation:
        """losses: of the steps since the last evaluation."""
        plan, device = self._plan, self._accelerator.device
        evaluation = evaluate(self._draft, self._head, self._held, plan.eval_tokens, plan.judged_steps, device)
        told = asdict(evaluation)
        del told["accuracies"]
        self._folder.add({**asdict(self.position), "loss": sum(losses) / max(1, len(losses)), **told})
        self._folder.save(self._module, self._optimizer, self.position)
        self._accelerator.wait_for_everyone()
        return evaluation
