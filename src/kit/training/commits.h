// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/comm/process_group.h>

#include "checkpoint/commit_memory.h"
#include "runtime/elastic_run.h"
#include "runtime/run.h"
#include "training/return_plan.h"

namespace lockstep::training {

// Note [Commits and their copies]
//
// A rank keeps its last two commits in memory of its launcher, which its replacement inherits. A rank overwrites commit
// k-1 by k+1 only when all ranks have commit k: a call of all ranks, which ends with commit k, is waited for by commit
// k+1. So the last commits of two ranks differ by 1 at most, and every rank has the older one.
//
// With several launchers the memory of one may be lost. A commit then has two parts. What only this rank has, its own
// part, goes to its neighbour, a rank of another launcher; what every rank has can come from any. Copies lie in
// the memory of the neighbour's launcher, beside its own commits, also of the last two.
//
//     commit k     write own k | all_to_all: own parts to the neighbours | all_reduce: the largest own part
//     step k+1                   ... both go on
//     commit k+1   wait for both: every rank has commit k, and its copy has arrived | write own k+1 ...
//
// hierarchical makes asynchronous calls one after the other, so the all_reduce of a rank begins when its copies have come.
// The receiver has to know the size of a message before, so all have the one that the ranks have agreed on. If a part has
// become larger, all see it in the all_reduce, and commit k+1 first sends the copies again.
//
// A replacement without commits, of a launcher that has come in the place of a lost one, gets its own part from the
// copy and the common part from the first rank that has the commit. Then neighbours without a copy of this commit get one.

// The commits of this rank in an elastic run. All ranks make the same calls.
class Commits {
 public:
  Commits(TrainingState& state, const runtime::Run& run, runtime::ElasticRun& elastic);

  // The number of the last commit of this rank.
  std::int64_t last() const { return last_; }
  // Commit 0. Returns when all ranks have it.
  void begin();
  // Until all ranks have the last commit, and a copy of each has come.
  void wait();
  // The next commit, of the states of this rank. wait() comes before.
  void add(const Dict& states);
  // When the group was formed again: all ranks return to the newest commit that can be had of each, and restore their
  // states. Returns the ranks that have got theirs from copies. Throws Error if there is none such; if because commits are lost,
  // the launchers start all ranks again.
  std::vector<int> restore();

 private:
  const ProcessGroup& group() const { return run_.group(); }
  bool are_copied() const { return !neighbours_.empty(); }
  void write(std::int64_t number, const Dict& states);
  void load(std::int64_t number);
  // `receives`[rank]: whether it takes the copies that it is to keep. `aside`: it keeps those that it has until all have
  // come.
  void send(const std::vector<bool>& receives, bool aside = false);
  void complete_copies();
  at::Tensor message() const;
  void end_calls();
  HeldCommits held() const;
  std::vector<HeldCommits> meet();
  [[noreturn]] void refuse(const std::vector<HeldCommits>& ranks) const;
  void require_common_parts_alike(std::int64_t number) const;
  void fetch(const ReturnPlan& plan, const std::vector<HeldCommits>& ranks);
  void send_missing_copies(const std::vector<HeldCommits>& ranks);

  TrainingState& state_;
  const runtime::Run& run_;
  runtime::ElasticRun& elastic_;
  int rank_;  // of the launcher, which is that of the group where commits are copied
  checkpointing::CommitMemory memory_;
  checkpointing::CommitMemory copies_;
  std::int64_t last_ = 0;
  std::vector<int> neighbours_;  // [rank]: the one that keeps its copies; empty: there are none
  std::size_t message_bytes_ = 0;

  // The calls of the last commit; without copies only the second one.
  Work copied_;
  Work all_have_last_;
  at::Tensor largest_;  // own part of a rank, in bytes
  std::vector<bool> receives_;
  at::Tensor aside_;  // copies that come, where they do not come into copies_
};

}  // namespace lockstep::training
