// SPDX-License-Identifier: BSD-3-Clause
#include "observe/stack_report.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "observe/python_frames.h"
#include "observe/stacks.h"

namespace lockstep::observe {
namespace {

// Threads with the same frames, in the same call.
struct Block {
  std::string activity{};  // empty for threads that make no calls
  std::vector<std::string> frames{};
  std::vector<std::string> ranks{};
  std::set<std::string> names{};
  std::size_t threads = 0;
};

std::string activity_of(const Rank& rank) {
  for (const auto& member : rank.groups) {
    if (const auto* const call = member.unfinished())
      return fmt::format("in {} of group {}", call->describe(), member.group);
  }
  return "in the program's own code";
}

// A rank where this process can see it.
struct VisibleRank {
  int pid = 0;
  int thread = 0;
  const Rank* rank = nullptr;
};

std::vector<VisibleRank> visible_ranks(const ObservedRun& observed, const Run& run) {
  std::vector<VisibleRank> visible;
  const auto add = [&](const auto& published, std::int64_t pid, std::int64_t thread) {
    const auto rank = std::ranges::find_if(
        run.ranks, [&](const Rank& each) { return each.pid == pid && each.thread == thread; });
    if (published.pid != 0) visible.push_back({published.pid, published.thread, &*rank});
  };
  for (const auto& each : observed.publications) add(each, each.status->pid, each.status->thread);
  for (const auto& each : observed.progress) add(each, each.memory->pid, each.memory->thread);
  return visible;
}

class StackText {
 public:
  void add(const ThreadStack& stack, const Rank* rank, const std::string& process) {
    const auto activity = rank == nullptr ? std::string() : activity_of(*rank);
    auto block = std::ranges::find_if(
        blocks_, [&](const Block& each) { return each.activity == activity && each.frames == stack.frames; });
    if (block == blocks_.end()) {
      blocks_.push_back({.activity = activity, .frames = stack.frames});
      block = blocks_.end() - 1;
    }
    ++block->threads;
    block->names.insert(stack.name);
    const auto who = rank == nullptr ? process : rank->describe();
    if (block->ranks.empty() || block->ranks.back() != who) block->ranks.push_back(who);
  }

  // Ranks' own threads first.
  std::string text() const {
    std::string text;
    for (const bool own : {true, false}) {
      for (const auto& block : blocks_) {
        if (block.activity.empty() == own) continue;
        const auto ranks = fmt::format("{}", fmt::join(block.ranks, ", "));
        text += own ? fmt::format("{}: {}\n", ranks, block.activity)
                    : fmt::format("{} other thread{} of {}: {}\n", block.threads,
                                  block.threads == 1 ? "" : "s", ranks, fmt::join(block.names, ", "));
        for (const auto& frame : block.frames) text += fmt::format("    {}\n", frame);
      }
    }
    return text;
  }

 private:
  std::vector<Block> blocks_;
};

}  // namespace

std::string stacks_text(const ObservedRun& observed, std::optional<std::int64_t> only,
                        const Deadline& python_deadline) {
  const auto run = observed.read();
  std::map<int, const Rank*> ranks;      // by thread
  std::map<int, std::string> processes;  // those of ranks
  for (const auto& [pid, thread, rank] : visible_ranks(observed, run)) {
    if (only && rank->pid != *only) continue;
    ranks[thread] = rank;
    processes.emplace(pid, rank->describe());
  }
  StackText stacks;
  std::string gone;
  std::set<std::string> problems;
  for (const auto& [pid, name] : processes) {
    try {
      auto python = python_frames_of(pid, python_deadline);
      if (!python.problem.empty()) problems.insert(python.problem);
      for (auto& stack : stacks_of(pid)) {
        const auto& frames = python.threads[stack.thread];
        stack.frames.insert(stack.frames.begin(), frames.begin(), frames.end());
        const auto rank = ranks.find(stack.thread);
        stacks.add(stack, rank == ranks.end() ? nullptr : rank->second, name);
      }
    } catch (const Error& error) {
      if (processes.size() == 1) throw;
      gone += fmt::format("{}: {}\n", name, error.what());
    }
  }
  for (const auto& rank : run.ranks) {
    if (only && rank.pid != *only) continue;
    if (rank.life == Life::dead || rank.life == Life::finished)
      gone +=
          fmt::format("{} {}\n", rank.describe(), rank.life == Life::dead ? "is dead" : "has left the run");
  }
  auto text = gone + stacks.text();
  for (const auto& problem : problems) text += problem + '\n';
  return text;
}

std::string short_stacks_text(const ObservedRun& run, std::int64_t pid, const Deadline& python) {
  constexpr std::size_t kMostBytes = std::size_t{32} << 10;
  auto text = stacks_text(run, pid, python);
  if (text.size() <= kMostBytes) return text;
  const auto all = text.size();
  text.resize(text.rfind('\n', kMostBytes));
  return text + fmt::format("\n    ... ({} more bytes)\n", all - text.size());
}

}  // namespace lockstep::observe
