// SPDX-License-Identifier: BSD-3-Clause
// Random calls with random arguments, right and wrong ones, over every backend: each must give the result of
// a reference in one process, or be refused with ArgumentError on the rank that passes the wrong arguments,
// before anything is sent. LOCKSTEP_FUZZ_DRAWS=20000 for a long run, LOCKSTEP_FUZZ_SEED for other draws,
// LOCKSTEP_FUZZ_DRAW to see one of them alone.
#include <deque>
#include <optional>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "base/env.h"
#include "comm/group_state.h"
#include "multiprocess/argument_draws.h"
#include "multiprocess/backends.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::Arguments;
using testing::Draw;

constexpr std::int64_t kDraws = 1500;
constexpr std::size_t kUnderWay = 4;  // asynchronous calls at most

std::int64_t number_from(const char* variable, std::int64_t usual) {
  return Env().get_int(variable).value_or(usual);
}

std::vector<at::ScalarType> carried_dtypes(const ProcessGroup& group) {
  std::vector<at::ScalarType> dtypes{at::kComplexFloat, at::kComplexDouble};
  const auto& traits = comm::state_of(group).info().traits;
  dtypes.insert(dtypes.end(), traits.dtypes.begin(), traits.dtypes.end());
  return dtypes;
}

// Makes a rank's part of the call.
std::optional<Work> start(const ProcessGroup& group, const Draw& draw, const Arguments& with) {
  const auto& in = with.inputs;
  const auto& out = with.outputs;
  switch (draw.kind) {
    case CallKind::all_reduce:
      return group.all_reduce_async(out[0], with.op);
    case CallKind::broadcast:
      return group.broadcast_async(out[0], with.root);
    case CallKind::reduce:
      return group.reduce_async(out[0], with.root, with.op);
    case CallKind::all_gather:
      return group.all_gather_async(out, in[0]);
    case CallKind::all_gather_into_tensor:
      return group.all_gather_into_tensor_async(out[0], in[0]);
    case CallKind::gather:
      return group.gather_async(in[0], out, with.root);
    case CallKind::scatter:
      return group.scatter_async(out[0], in, with.root);
    case CallKind::reduce_scatter:
      return group.reduce_scatter_async(out[0], in, with.op);
    case CallKind::reduce_scatter_tensor:
      return group.reduce_scatter_tensor_async(out[0], in[0], with.op);
    case CallKind::all_to_all:
      return group.all_to_all_async(out, in);
    case CallKind::all_to_all_single:
      return group.all_to_all_single_async(out[0], in[0], with.output_splits, with.input_splits);
    case CallKind::send:
      if (group.rank() == draw.root) return group.send_async(in[0], with.peer, with.tag);
      return group.recv_async(out[0], draw.any_source ? std::nullopt : std::optional(with.root), with.tag);
    default:
      return group.barrier_async();
  }
}

// The blocking form.
void run(const ProcessGroup& group, const Draw& draw, const Arguments& with) {
  const auto& in = with.inputs;
  const auto& out = with.outputs;
  switch (draw.kind) {
    case CallKind::all_reduce:
      return group.all_reduce(out[0], with.op);
    case CallKind::broadcast:
      return group.broadcast(out[0], with.root);
    case CallKind::reduce:
      return group.reduce(out[0], with.root, with.op);
    case CallKind::all_gather:
      return group.all_gather(out, in[0]);
    case CallKind::all_gather_into_tensor:
      return group.all_gather_into_tensor(out[0], in[0]);
    case CallKind::gather:
      return group.gather(in[0], out, with.root);
    case CallKind::scatter:
      return group.scatter(out[0], in, with.root);
    case CallKind::reduce_scatter:
      return group.reduce_scatter(out[0], in, with.op);
    case CallKind::reduce_scatter_tensor:
      return group.reduce_scatter_tensor(out[0], in[0], with.op);
    case CallKind::all_to_all:
      return group.all_to_all(out, in);
    case CallKind::all_to_all_single:
      return group.all_to_all_single(out[0], in[0], with.output_splits, with.input_splits);
    case CallKind::send:
      if (group.rank() == draw.root) return group.send(in[0], with.peer, with.tag);
      EXPECT_EQ(group.recv(out[0], draw.any_source ? std::nullopt : std::optional(with.root), with.tag),
                draw.root);
      return;
    default:
      return group.barrier();
  }
}

class Fuzzer {
 public:
  Fuzzer(const ProcessGroup& group, std::uint64_t seed)
      : group_(group), seed_(seed), dtypes_(carried_dtypes(group)) {}

  void make(std::uint64_t number) {
    const auto draw = testing::draw_of(seed_, number, group_.size(), dtypes_);
    try {
      make(draw);
    } catch (const std::exception& error) {
      throw std::runtime_error(fmt::format("{} of {}: LOCKSTEP_FUZZ_SEED={} LOCKSTEP_FUZZ_DRAW={} ({}): {}",
                                           group_.rank(), group_.size(), seed_, number, draw.describe(),
                                           error.what()));
    }
  }
  void finish() {
    while (!under_way_.empty()) finish_oldest();
  }

 private:
  struct UnderWay {
    Draw draw;
    Arguments arguments;
    Work work;
  };

  void make(const Draw& draw) {
    if (draw.is_refused()) return refuse(draw);
    if (!draw.takes_part(group_.rank())) return;
    auto arguments = arguments_of(draw);
    if (draw.asynchronous) {
      auto work = start(group_, draw, arguments);
      under_way_.push_back({draw, std::move(arguments), std::move(*work)});
      if (under_way_.size() > kUnderWay) finish_oldest();
      return;
    }
    run(group_, draw, arguments);
    verify(draw, arguments);
  }

  void refuse(const Draw& draw) const {
    if (!draw.is_flawed(group_.rank())) return;
    const auto arguments = arguments_of(draw);
    try {
      draw.asynchronous ? start(group_, draw, arguments)->wait() : run(group_, draw, arguments);
    } catch (const ArgumentError&) {
      return;
    }
    throw std::runtime_error("wrong arguments are taken");
  }

  void finish_oldest() {
    auto oldest = std::move(under_way_.front());
    under_way_.pop_front();
    try {
      oldest.work.wait();
      verify(oldest.draw, oldest.arguments);
    } catch (const std::exception& error) {
      throw std::runtime_error(
          fmt::format("of draw {} ({}): {}", oldest.draw.number, oldest.draw.describe(), error.what()));
    }
  }

  Arguments arguments_of(const Draw& draw) const {
    const auto backend = group_.backend();
    return testing::arguments_of(draw, group_.rank(), [&](std::int64_t numel, at::ScalarType dtype) {
      const bool has_memory = backend->supportsTensorAlloc(0) && !c10::isComplexType(dtype);
      return has_memory ? backend->allocateTensor(numel, at::TensorOptions(dtype))
                        : torch::zeros({numel}, dtype);
    });
  }

  void verify(const Draw& draw, const Arguments& arguments) const {
    const auto fault = testing::fault_of(draw, group_.rank(), arguments);
    if (!fault.empty()) throw std::runtime_error(fault);
  }

  const ProcessGroup& group_;
  std::uint64_t seed_;
  std::vector<at::ScalarType> dtypes_;
  std::deque<UnderWay> under_way_;
};

const testing::Scenario draws("fuzzed arguments", [] {
  const auto context = init({.backend = testing::backend_under_test(), .timeout = 20s});
  Fuzzer fuzzer(context.group(), static_cast<std::uint64_t>(number_from("LOCKSTEP_FUZZ_SEED", 43)));
  const auto only = number_from("LOCKSTEP_FUZZ_DRAW", -1);
  if (only >= 0) fuzzer.make(static_cast<std::uint64_t>(only));
  for (std::int64_t i = 0; only < 0 && i < number_from("LOCKSTEP_FUZZ_DRAWS", kDraws); ++i)
    fuzzer.make(static_cast<std::uint64_t>(i));
  fuzzer.finish();
  context.barrier();
});

class ArgumentFuzzer : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(ArgumentFuzzer, EveryCallIsRightOrRefused) {
  const auto& [backend, ranks] = GetParam();
  const auto seconds = 60 + number_from("LOCKSTEP_FUZZ_DRAWS", kDraws) / 20;
  testing::expect_all_passed(
      testing::run_ranks(draws, {.world_size = ranks,
                                 .env = {{testing::kBackendVariable, testing::backend_of(backend)}},
                                 .rank_env = testing::hosts_of(backend, ranks),
                                 .timeout = std::chrono::seconds(seconds)}));
}
INSTANTIATE_TEST_SUITE_P(Ranks, ArgumentFuzzer, testing::backends_and_ranks({2, 3}), testing::name_of_case);
INSTANTIATE_TEST_SUITE_P(TwoHosts, ArgumentFuzzer, testing::two_hosts(1, 1), testing::name_of_case);
INSTANTIATE_TEST_SUITE_P(UnevenHosts, ArgumentFuzzer, testing::two_hosts(2, 1), testing::name_of_case);

}  // namespace
}  // namespace lockstep
