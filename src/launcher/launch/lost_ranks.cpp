// SPDX-License-Identifier: BSD-3-Clause
// What a NodeSupervisor does when ranks are lost, of its node or of others, and the run continues.
#include <algorithm>
#include <unistd.h>

#include <fmt/format.h>

#include "launch/launch_limits.h"
#include "launch/process_tree.h"
#include "launch/supervisor.h"

namespace lockstep::launch {

bool NodeSupervisor::overcome(RankExit& exit) {
  // The others, or the replacement, would wait for a rank that was interrupted.
  if (failures().interrupted() || !workers_->is_in_elastic_run()) return false;
  return options_.on_loss == OnLoss::shrink ? go_on_without(exit) : replace(exit);
}

bool NodeSupervisor::go_on_without(RankExit& exit) {
  const int left = static_cast<int>(workers_->alive().size());
  if (left < options_.min_ranks) {
    exit.too_few = fmt::format("which leaves {} rank{}, fewer than --min-ranks {}", left,
                               left == 1 ? "" : "s", options_.min_ranks);
    return false;
  }
  if (!kill_session(exit.pid, Deadline(kLeftoverLimit))) return false;
  const int others = workers_->lose(exit.local_rank);
  const auto line = fmt::format("rank {} {}; the run continues with {} rank{}", exit.rank, describe(exit),
                                others, others == 1 ? "" : "s");
  logs_.print(line);
  account({.replacement = line});
  return true;
}

bool NodeSupervisor::replace(const RankExit& exit) {
  if (!workers_->can_replace() || !kill_session(exit.pid, Deadline(kLeftoverLimit))) return false;
  if (options_.nodes)
    client_->send(Replaced{.attempt = workers_->assignment().attempt, .report = report(exit)});
  const pid_t pid = workers_->replace(exit.local_rank);
  auto line = fmt::format("rank {} {}; its replacement runs", exit.rank, describe(exit));
  if (options_.nodes) {
    replacements_.push_back({.rank = exit.rank, .line = line});
  } else {
    line = counted(line);
    logs_.print(line);
  }
  account({.started = {{exit.rank, pid}}, .replacement = line});
  fill_spares();
  return true;
}

std::string NodeSupervisor::counted(const std::string& line) const {
  return fmt::format("{} ({} of {} restarts)", line, workers_->assignment().restarts, options_.max_restarts);
}

// Between steps that take long: RemoteStore waits for kStoreAnswerLimit.
void NodeSupervisor::serve_store() {
  if (!store_) return;
  std::vector<pollfd> events;
  store_->watch(events);
  ::poll(events.data(), events.size(), 0);
  store_->advance(events);
}

// The ranks can run without them.
void NodeSupervisor::fill_spares() {
  try {
    workers_->fill_spares();
  } catch (const LaunchError& error) {
    logs_.print(fmt::format("warning: no other spare was started: {}", error.what()));
  }
}

// The coordinator counts for all nodes.
void NodeSupervisor::on(const Restarts& restarts) {
  if (!workers_ || workers_->assignment().attempt != restarts.attempt) return;
  workers_->count_restarts(restarts.restarts);
  const auto own = std::ranges::find(replacements_, restarts.rank, &Replacement::rank);
  if (own == replacements_.end()) return;
  logs_.print(counted(own->line));
  replacements_.erase(own);
}

// The launcher of the host writes the same line to the same terminal.
void NodeSupervisor::tell(const std::string& news) {
  if (!options_.adopted) logs_.print(news);
}

void NodeSupervisor::on(const Lost& lost) {
  tell(lost.notice);
  if (store_) store_->fence(lost.node_rank, lost.epoch);
  if (!workers_ || workers_->assignment().attempt != lost.attempt || is_stopping()) return;
  if (workers_->is_in_elastic_run() && !failures().any()) {
    workers_->lose_others();
  } else {
    client_->send(Failed{.attempt = lost.attempt, .report = lost.report});
  }
}

// The launcher's first process starts it. If that is frozen, the pipe may be full: nobody waits for it.
void NodeSupervisor::on(const Adopt& adopt) const {
  if (options_.adoptions < 0) return;
  const auto line = encode(ToNode(adopt)) + "\n";
  [[maybe_unused]] const auto written = ::write(options_.adoptions, line.data(), line.size());
}

}  // namespace lockstep::launch
