// SPDX-License-Identifier: BSD-3-Clause
#include "launch/launch_limits.h"

#include <algorithm>

#include <fmt/format.h>

#include "launch/coordinator.h"
#include "launch/process_tree.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

// SLURM's KillWait and Kubernetes' terminationGracePeriodSeconds, if nobody has changed them.
constexpr std::chrono::seconds kUsualPatience{30};

}  // namespace

std::vector<TimeLimit> launch_limits(const LaunchOptions& options) {
  std::vector<TimeLimit> limits{
      {"from SIGTERM to SIGKILL", span_text(options.grace_period), "--grace-period"},
      {"from SIGTERM to SIGKILL, for what failed ranks leave behind",
       span_text(std::min(kLeftoverLimit, options.grace_period)), "-"},
      {"the end of processes after SIGKILL", span_text(kKillLimit), "-"},
      {"the failure of the rank that another one has lost", span_text(kConfirmLimit), "-"},
      {"the start of a rank's program", span_text(kExecLimit), "-"},
      {"a rank without progress",
       options.progress_timeout ? span_text(*options.progress_timeout) : "no limit", "--progress-timeout"},
  };
  if (!options.nodes) return limits;
  const auto& nodes = *options.nodes;
  limits.insert(
      limits.end(),
      {{"launchers that join, up to the least number", span_text(nodes.join_timeout), "join_timeout"},
       {"launchers that join, beyond it", span_text(nodes.last_call_timeout), "last_call_timeout"},
       {"a host that has lost its power", span_text(nodes.silence_limit),
        "keep_alive_interval * keep_alive_max_attempt"},
       {"a coordinator that is frozen", span_text(kSilences * nodes.silence_limit),
        fmt::format("{} times that", kSilences)}});
  if (replaces_ranks(options.on_loss)) {
    limits.push_back(options.on_loss == OnLoss::oversubscribe
                         ? TimeLimit{"a launcher that takes the place of a lost one",
                                     span_text(Coordinator::kAdoptLimit), "-"}
                         : TimeLimit{"a launcher that takes the place of a lost one",
                                     span_text(nodes.join_timeout), "join_timeout"});
    limits.push_back({"an answer of the store that node 0 serves", span_text(kStoreAnswerLimit), "-"});
  }
  return limits;
}

LauncherLimits limits_for_ranks(const LaunchOptions& options) {
  LauncherLimits limits{.progress_timeout = options.progress_timeout, .are_shown = options.shows_limits};
  if (options.nodes) limits.silence_limit = options.nodes->silence_limit;
  return limits;
}

std::string grace_warning(const LaunchOptions& options, const Env& env) {
  const bool in_slurm = env.has("SLURM_JOB_ID");
  if (options.grace_period < kUsualPatience || !(in_slurm || env.has("KUBERNETES_SERVICE_HOST"))) return {};
  return fmt::format(
      "--grace-period {:g} is not shorter than {}, which is {} s by default: the launcher may be killed before the ranks "
      "have ended; lower --grace-period, or see to it that {} is longer",
      std::chrono::duration<double>(options.grace_period).count(),
      in_slurm ? "SLURM's KillWait" : "the terminationGracePeriodSeconds of a pod", kUsualPatience.count(),
      in_slurm ? "KillWait (`scontrol show config`)" : "that of the pod");
}

}  // namespace lockstep::launch
