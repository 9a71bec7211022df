// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <unordered_set>

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/log.h>
#include <lockstep/ddp/step_verifier.h>
#include <lockstep/ddp/zero_redundancy_optimizer.h>
#include <lockstep/nn/wrapped_module.h>
#include <lockstep/training/elastic.h>

#include "base/caller_place.h"
#include "base/deadline.h"
#include "base/rank_progress.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "checkpoint/training_state_access.h"
#include "comm/call_site.h"
#include "comm/group_state.h"
#include "comm/peer_check.h"
#include "modules/rank_part.h"
#include "optim/optimizer_states.h"
#include "runtime/elastic_run.h"
#include "runtime/run.h"
#include "training/commits.h"

namespace lockstep::elastic {
namespace {

using Access = checkpointing::TrainingStateAccess;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kWaitForNews = 500ms;
constexpr auto kPauseForNews = 5ms;

// Note [Elastic runs]
//
//     start        commit 0 ---> every rank is here: RunPhase::running ---> body
//     body         step 1, commit 1, step 2, commit 2, ...
//     a rank dies  the calls of the others fail ---> the default group forms again ---> wrappers rejoin it
//                  ---> all return to min over ranks of the last commit ---> body
//                  (with --on-loss shrink "all" are those that are left, and the world is smaller)
//     end          every rank has done its body: RunPhase::finished
//     or           all ranks have found one that computes wrongly, and none is replaced: RunPhase::stopped
//
// Note [Commits and their copies] in training/commits.h says what a replacement returns to.
class Execution final : public checkpointing::Committer {
 public:
  Execution(TrainingState& state, runtime::Run& run, runtime::ElasticRun& elastic)
      : state_(state), run_(run), elastic_(elastic), commits_(state, run, elastic) {}

  void work(const std::function<void(const Context&)>& body) {
    auto begin = elastic_.is_replacement() ? &Execution::recover : &Execution::start;
    while (!has_ended()) {
      if (survives([&] { (this->*begin)(); })) survives([&] { train(body); });
      begin = &Execution::recover;
    }
  }

  void commit(const TrainingState& state, std::source_location where) override {
    const CallerPlace place(where);
    const comm::CallSite site("commits of an elastic run");
    commits_.wait();
    const auto own = Access::own_state_dict(state);
    if (can_shrink()) require_no_gradients(state);
    commits_.add(own);
  }

 private:
  const ProcessGroup& group() const { return run_.group(); }
  RunState& shared() const { return elastic_.memory().state(); }
  bool can_shrink() const { return elastic_.memory().can_shrink(); }

  void start() {
    const comm::CallSite site("start of an elastic run");
    commits_.begin();
    elastic_.begin_running();
  }

  // A rank that is lost in the last barrier is no loss to the others, if it has come there.
  bool has_ended() const {
    return has_done_its_work_ && (shared().phase == RunPhase::finished || phase() == RunPhase::finished);
  }

  void train(const std::function<void(const Context&)>& body) {
    has_done_its_work_ = false;
    body(run_.context());
    if (runtime::current_run() != &run_)
      throw ArgumentError(
          "elastic::run: `body` has left the run; call destroy_process_group() after elastic::run()");
    has_done_its_work_ = true;
    const comm::CallSite site("end of an elastic run");
    commits_.wait();
    group().barrier();
    elastic_.set_phase(RunPhase::finished);
  }

  // Whether `part` has not failed. Throws the exceptions that are no consequence of a lost rank.
  bool survives(const std::function<void()>& part) {
    try {
      part();
      return true;
    } catch (const std::exception& error) {
      if (has_ended()) return false;
      if (!is_consequence_of_loss(error)) {
        end_run_if_hopeless(error);
        throw;
      }
      lost_at_ = Clock::now();
      log(LogLevel::debug, fmt::format("elastic::run: {}", first_line_of(error.what())));
      return false;
    }
  }

  // `ask` while another error is handled, which must come through if the store of the run is lost.
  template <class Ask, class Answer>
  static Answer answer_or(const Ask& ask, Answer otherwise) {
    try {
      return ask();
    } catch (const std::exception& error) {
      log(LogLevel::debug, fmt::format("elastic::run: {}", first_line_of(error.what())));
      return otherwise;
    }
  }

  RunPhase phase() const {
    return answer_or([&] { return elastic_.phase(); }, shared().phase.load());
  }

  bool must_form_again() const {
    return answer_or([&] { return elastic_.must_form_again(); }, false);
  }

  void tell(RunPhase next) const {
    answer_or([&] { return elastic_.set_phase(next), true; }, false);
  }

  void end_run_if_hopeless(const std::exception& error) const {
    if (is_of_all_ranks(error)) {
      tell(RunPhase::stopped);
    } else if (can_shrink() && may_be_of_frozen_rank(error)) {
      tell(RunPhase::starting);  // so that the launcher ends that rank, too
    }
  }

  // Whether the commits would lead to the error again.
  bool is_of_all_ranks(const std::exception& error) const {
    const auto* const wrong = dynamic_cast<const VerificationError*>(&error);
    if (wrong != nullptr) return wrong->is_on_all_ranks();
    return can_shrink() && dynamic_cast<const NonFiniteError*>(&error) != nullptr;
  }

  // The rank does not end, so the others would end one after the other and leave it alone.
  static bool may_be_of_frozen_rank(const std::exception& error) {
    if (dynamic_cast<const RendezvousError*>(&error) != nullptr) return true;  // of form_again()
    const auto* const timeout = dynamic_cast<const TimeoutError*>(&error);
    return timeout != nullptr && !timeout->group().empty();
  }

  void require_no_gradients(const TrainingState& state) const {
    try {
      Access::require_no_gradients(state);
    } catch (const ArgumentError&) {
      tell(RunPhase::stopped);  // on all ranks, which commit alike
      throw;
    }
  }

  bool is_consequence_of_loss(const std::exception& error) const {
    const auto now = phase();
    // The launcher ends all.
    if (now == RunPhase::starting || (can_shrink() && now == RunPhase::stopped)) return false;
    if (dynamic_cast<const VerificationError*>(&error) != nullptr) return false;  // this rank has to end
    if (dynamic_cast<const RendezvousError*>(&error) != nullptr) return false;    // of form_again()
    if (dynamic_cast<const PeerLost*>(&error) != nullptr || must_form_again()) return true;
    // Another error of a call, as of a rank that has left the group to form it again, may come before the news.
    const auto* const own = dynamic_cast<const Error*>(&error);
    const bool may_be = own != nullptr && !(can_shrink() && own->group().empty());
    return hears_of_loss(may_be ? kWaitForNews : 0ms);
  }

  // The group knows of losses on one host, and the others' proposals tell of those on several.
  bool hears_of_loss(std::chrono::milliseconds limit) const {
    if (comm::has_lost_rank(group(), limit) || must_form_again()) return true;
    const Deadline deadline(elastic_.memory().has_several_hosts() ? limit : 0ms);
    while (!deadline.expired()) {
      std::this_thread::sleep_for(kPauseForNews);
      if (must_form_again()) return true;
    }
    return false;
  }

  void recover() {
    const comm::CallSite site("recovery of an elastic run");
    // The failed step may have ended in a wait for reductions.
    if (auto* const progress = progress_of_trainer()) enter_phase(*progress, Phase::other);
    elastic_.form_again();
    const auto formed = Clock::now();
    for (auto* module : Access::modules(state_)) nn::rejoin(*module);
    for (const auto& owner : modules::living_owners())
      owner->rejoin();  // of modules outside of the state, too
    for (auto* optimizer : Access::optimizers(state_))
      if (auto* const rejoining = dynamic_cast<ddp::RejoiningOptimizer*>(optimizer)) rejoining->rejoin();
    const auto fetched = commits_.restore();
    if (group().rank() == 0) {
      const auto in_ms = [&](Clock::time_point since) {
        return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since).count();
      };
      log(LogLevel::info,
          fmt::format("{} continued from commit {}: {} ms after this rank noticed the loss of "
                      "another, {} ms of them to restore the state{}",
                      members_text(), commits_.last(), in_ms(lost_at_), in_ms(formed),
                      fetched_text(fetched)));
    }
  }

  std::string members_text() const {
    const int before = elastic_.memory().world_size();
    if (group().size() < before) return fmt::format("{} of {} ranks are left and", group().size(), before);
    return before == 1 ? "the rank" : fmt::format("all {} ranks", before);
  }

  static std::string fetched_text(const std::vector<int>& ranks) {
    if (ranks.empty()) return "";
    return fmt::format("; rank{} {} had no commits and got {} from copies", ranks.size() == 1 ? "" : "s",
                       fmt::join(ranks, ", "), ranks.size() == 1 ? "its state" : "their states");
  }

  TrainingState& state_;
  runtime::Run& run_;
  runtime::ElasticRun& elastic_;
  training::Commits commits_;
  bool has_done_its_work_ = false;
  Clock::time_point lost_at_ = Clock::now();
};

// Its module has to rejoin, too.
void check_shards(const TrainingState& state, const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const void*> known;
  for (const auto* module : Access::modules(state))
    for (const auto& each : modules::own_tensors(*module)) known.insert(each.tensor.unsafeGetTensorImpl());
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (optim::rows_of(parameter) == nullptr || known.contains(parameter.unsafeGetTensorImpl())) continue;
      throw ArgumentError(
          "elastic::run: an optimizer has parameters of fully_shard() whose module is not in the state; add() the "
          "module that fully_shard() was called for");
    }
  }
}

void check_shrinking(const TrainingState& state, const ProcessGroup& group) {
  if (group.size() == 1) return;
  Access::require_can_shrink(state);
  if (modules::living_owners().empty()) return;
  throw ArgumentError(
      "elastic::run: --on-loss shrink does not support modules of fully_shard(), of which there is one that is not in the "
      "state: only a lost rank has its shards. Use --on-loss replace");
}

void check(const TrainingState& state, const runtime::Run& run, const runtime::ElasticRun& elastic) {
  const auto& group = run.group();
  if (!group.supports_reconfigure()) {
    throw_error<ArgumentError>(
        "elastic::run: the default group has the backend {}, which cannot be formed again after a loss; use "
        "\"{}\", or \"auto\" on the CPU",
        group.backend_name(), elastic.memory().has_several_hosts() ? "hierarchical" : "shm");
  }
  const auto phase = elastic.memory().state().phase.load();
  if (phase != RunPhase::starting && !elastic.is_replacement())
    throw ArgumentError("elastic::run: it has been called before; a run has one, for all of its training");
  if (elastic.has_other_groups()) {
    throw ArgumentError(
        "elastic::run: there are process groups besides the default group, by new_group(), split_group() or a "
        "DeviceMesh; they cannot be formed again after a loss yet");
  }
  if (elastic.memory().can_shrink()) check_shrinking(state, group);
  for (const auto* module : Access::modules(state)) nn::require_can_rejoin(*module);
  for (const auto& owner : modules::living_owners()) owner->require_can_rejoin();
  for (const auto* optimizer : Access::optimizers(state)) {
    check_shards(state, *optimizer);
    if (const auto* const rejoining = dynamic_cast<const ddp::RejoiningOptimizer*>(optimizer))
      rejoining->require_can_rejoin();
  }
}

}  // namespace

void run(TrainingState& state, const std::function<void(const Context&)>& body, std::source_location where) {
  const CallerPlace place(where);
  auto& current = runtime::require_run("elastic::run");
  auto* const elastic = current.elastic();
  if (elastic == nullptr) return body(current.context());
  check(state, current, *elastic);
  for (const auto& owner : modules::living_owners()) owner->keep_settings();
  Execution execution(state, current, *elastic);
  Access::set_committer(state, &execution);
  const auto end = c10::make_scope_exit([&] { Access::set_committer(state, nullptr); });
  execution.work(body);
}

}  // namespace lockstep::elastic
