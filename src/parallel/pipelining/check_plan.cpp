// SPDX-License-Identifier: BSD-3-Clause
#include "pipelining/check_plan.h"

#include <algorithm>
#include <map>

#include "base/throw_error.h"
#include "pipelining/plan_walk.h"

namespace lockstep::pipelining {
namespace {

using enum ComputationType;

// What a rank has done with a micro-batch of a stage so far.
struct Done {
  bool forward = false, backward = false, weight = false, sent_f = false, received_f = false, sent_b = false,
       received_b = false;
};

struct Place {
  std::size_t rank, step;
  const Action& action;
};

[[noreturn]] void refuse_at(const Place& place, std::string_view why) {
  throw_error<ArgumentError>("plan: rank {}, step {}, action {}: {}", place.rank, place.step,
                             place.action.str(), why);
}

void once(bool& flag, const Place& place) {
  if (flag) refuse_at(place, "the stage has run it before for this micro-batch");
  flag = true;
}

void follow(const Place& place, Done& done, const std::vector<int>& rank_of) {
  const auto stage = static_cast<std::size_t>(place.action.stage_index);
  const auto local = [&](std::size_t peer) { return rank_of[peer] == rank_of[stage]; };
  const auto type = place.action.computation_type;
  if (is_recv(type) || is_send(type)) {
    const bool after = type == SEND_F || type == RECV_B;
    if (after ? stage + 1 == rank_of.size() : stage == 0) refuse_at(place, "there is no such neighbour");
    if (local(after ? stage + 1 : stage - 1)) refuse_at(place, "both stages are on this rank");
  }
  switch (type) {
    case FORWARD:
      return once(done.forward, place);
    case RECV_F:
      if (done.forward) refuse_at(place, "after the forward that needs it");
      return once(done.received_f, place);
    case SEND_F:
      if (!done.forward) refuse_at(place, "before the forward");
      return once(done.sent_f, place);
    case RECV_B:
      if (!done.forward) refuse_at(place, "before the forward, which gives the shape");
      if (done.backward) refuse_at(place, "after the backward that needs it");
      return once(done.received_b, place);
    case SEND_B:
      if (!done.backward) refuse_at(place, "before the backward");
      return once(done.sent_b, place);
    case BACKWARD_INPUT:
    case FULL_BACKWARD:
      if (!done.forward) refuse_at(place, "before the forward");
      once(done.backward, place);
      if (type == FULL_BACKWARD) done.weight = true;
      return;
    case BACKWARD_WEIGHT:
      if (!done.backward) refuse_at(place, "before the input part (I) of this micro-batch");
      return once(done.weight, place);
    default:
      return;
  }
}

void check_complete(const Plan& plan, PerMicrobatch<Done>& all, const std::vector<int>& rank_of,
                    bool messages) {
  for (int stage = 0; stage < plan.num_stages; ++stage) {
    const auto rank = rank_of[static_cast<std::size_t>(stage)];
    for (int microbatch = 0; microbatch < plan.n_microbatches; ++microbatch) {
      const auto& done = all.at(stage, microbatch);
      const auto require = [&](bool is_done, const char* action) {
        if (!is_done)
          throw_error<ArgumentError>("plan: rank {}, stage {}, micro-batch {}: {} is missing", rank, stage,
                                     microbatch, action);
      };
      require(done.forward, "F");
      require(done.backward, "B or I");
      require(done.weight, "W");
      if (!messages) continue;
      const auto apart = [&](int peer) { return rank_of[static_cast<std::size_t>(peer)] != rank; };
      if (stage > 0 && apart(stage - 1)) {
        require(done.received_f, "RECV_F");
        require(done.sent_b, "SEND_B");
      }
      if (stage + 1 < plan.num_stages && apart(stage + 1)) {
        require(done.sent_f, "SEND_F");
        require(done.received_b, "RECV_B");
      }
    }
  }
}

// Without tags (NCCL), the n-th send to a rank meets its n-th receive.
class MessageOrder {
 public:
  // `both_ways`: both directions are in one order, because NCCL runs the messages of two ranks one after the
  // other.
  explicit MessageOrder(const std::vector<int>& rank_of, bool both_ways = false)
      : rank_of_(rank_of), both_ways_(both_ways) {}

  void add(std::size_t rank, const Action& action) {
    const auto type = action.computation_type;
    const bool sends = is_send(type), forward = type == SEND_F || type == RECV_F;
    const int peer_stage = action.stage_index + (forward == sends ? 1 : -1);
    const int peer = rank_of_[static_cast<std::size_t>(peer_stage)], self = static_cast<int>(rank);
    const Message message{.to_stage = sends ? peer_stage : action.stage_index,
                          .microbatch = *action.microbatch_index,
                          .forward = forward};
    if (both_ways_) {
      (self < peer ? sent_ : received_)[std::minmax(self, peer)].push_back(message);
    } else {
      (sends ? sent_[{self, peer}] : received_[{peer, self}]).push_back(message);
    }
  }

  void check() const {
    for (const auto& [ranks, messages] : sent_) {
      const auto found = received_.find(ranks);
      const auto other = std::mismatch(messages.begin(), messages.end(), found->second.begin());
      if (other.first == messages.end()) continue;
      const auto& [to_stage, microbatch, forward] = *other.first;
      const auto what = fmt::format("{} of stage {}, micro-batch {}",
                                    forward ? "the inputs" : "the gradients", to_stage, microbatch);
      if (both_ways_)
        throw_error<ArgumentError>(
            "plan: ranks {} and {} send and receive {} in different orders; on GPUs a rank's messages to and "
            "from another one need the order of that rank",
            ranks.first, ranks.second, what);
      throw_error<ArgumentError>(
          "plan: rank {} sends {} to rank {}, which receives its messages in another order", ranks.first,
          what, ranks.second);
    }
  }

 private:
  struct Message {
    int to_stage, microbatch;
    bool forward;
    bool operator==(const Message&) const = default;
  };
  using Lists = std::map<std::pair<int, int>, std::vector<Message>>;  // from, to; both ways: lower, higher

  const std::vector<int>& rank_of_;
  bool both_ways_;
  Lists sent_, received_;
};

// Each stage has one REDUCE_GRAD, after its last backward, or no stage has one.
void check_reductions(const Plan& plan) {
  using enum ComputationType;
  std::vector<bool> reduced(static_cast<std::size_t>(plan.num_stages), false);
  for (const auto& actions : plan.pipeline_order) {
    for (const auto& action : actions) {
      if (!action) continue;
      for_each_part(*action, [&](const Action& part) {
        const auto type = part.computation_type;
        if (type != REDUCE_GRAD && type != FULL_BACKWARD && type != BACKWARD_WEIGHT) return;
        auto&& done = reduced.at(static_cast<std::size_t>(part.stage_index));
        if (done)
          throw_error<ArgumentError>("the plan has {} after {}REDUCE_GRAD, which must be the last",
                                     part.str(), part.stage_index);
        done = type == REDUCE_GRAD;
      });
    }
  }
  const auto missing = std::ranges::find(reduced, false);
  if (missing != reduced.end() && std::ranges::find(reduced, true) != reduced.end())
    throw_error<ArgumentError>("the plan has REDUCE_GRAD of other stages, but not {}REDUCE_GRAD",
                               missing - reduced.begin());
}

}  // namespace

void check_plan(const Plan& plan) {
  const auto rank_of = stage_to_rank(plan);
  PerMicrobatch<Done> all(plan, {});
  MessageOrder order(rank_of);
  bool messages = false;
  for (std::size_t rank = 0; rank < plan.pipeline_order.size(); ++rank) {
    const auto& actions = plan.pipeline_order[rank];
    for (std::size_t step = 0; step < actions.size(); ++step) {
      if (!actions[step]) continue;
      for_each_part(*actions[step], [&](const Action& part) {
        const Place place{rank, step, part};
        if (!part.microbatch_index) {
          if (has_microbatch(part.computation_type)) refuse_at(place, "it needs a micro-batch");
          return;
        }
        if (*part.microbatch_index < 0 || *part.microbatch_index >= plan.n_microbatches)
          refuse_at(place, fmt::format("the plan has the micro-batches 0 to {}", plan.n_microbatches - 1));
        follow(place, all.at(part), rank_of);
        if (!is_send(part.computation_type) && !is_recv(part.computation_type)) return;
        messages = true;
        order.add(rank, part);
      });
    }
  }
  check_complete(plan, all, rank_of, messages);
  order.check();
  check_reductions(plan);
}

void check_order_of_pairs(const Plan& plan) {
  const auto rank_of = stage_to_rank(plan);
  MessageOrder order(rank_of, /*both_ways=*/true);
  for (std::size_t rank = 0; rank < plan.pipeline_order.size(); ++rank) {
    for (const auto& action : plan.pipeline_order[rank]) {
      if (!action) continue;
      for_each_part(*action, [&](const Action& part) {
        if (is_send(part.computation_type) || is_recv(part.computation_type)) order.add(rank, part);
      });
    }
  }
  order.check();
}

}  // namespace lockstep::pipelining
