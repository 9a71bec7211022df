// SPDX-License-Identifier: BSD-3-Clause
// SyncBatchNorm in a join, against the same training without one.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/distributed.h>

#include "multiprocess/backends.h"
#include "parity/models/resnet.h"

namespace lockstep::joined_batch_norm_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

Context init_under_test() {
  // Longer than the watchdog of run_ranks(): a rank that hangs fails its test.
  return init({.backend = testing::backend_under_test(), .timeout = std::chrono::seconds(300)});
}

using Tensors = std::vector<at::Tensor>;

Tensors state_of(const torch::nn::Module& module) {
  Tensors state;
  for (const auto& tensor : module.parameters()) state.push_back(tensor.detach().clone());
  for (const auto& tensor : module.buffers()) state.push_back(tensor.detach().clone());
  return state;
}

void expect_equal(const Tensors& ours, const Tensors& expected, double tolerance) {
  ASSERT_EQ(ours.size(), expected.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const bool equal = tolerance == 0 ? torch::equal(ours[i], expected[i])
                                      : torch::allclose(ours[i], expected[i], tolerance, tolerance);
    EXPECT_TRUE(equal) << "tensor " << i << " of " << ours.size() << ": "
                       << (ours[i] - expected[i]).abs().max();
  }
}

void expect_same_on_all_ranks(const Context& context, const Tensors& state) {
  for (const auto& tensor : state) {
    const auto of_rank_0 = tensor.clone();
    context.group().broadcast(of_rank_0, 0);
    EXPECT_TRUE(torch::equal(tensor, of_rank_0));
  }
}

int max_of(const std::vector<int>& counts) { return *std::ranges::max_element(counts); }
int own_of(const std::vector<int>& counts) { return counts.at(static_cast<std::size_t>(get_rank())); }

// One training of a ResNet in which rank r has counts[r] batches.
class ResNetTraining {
 public:
  ResNetTraining(const Context& context, std::vector<int> counts)
      : context_(context), counts_(std::move(counts)) {
    manual_seed(1);
    net_ = testing::ResNet18(2, 1);
    net_->to(at::kDouble);
    optimizer_.emplace(net_->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  }

  void in_join(bool by_initial_size) {
    convert_sync_batchnorm(net_);
    Ddp ddp(net_, {.bucket_cap_mb = kBucketMiB});
    const auto join = ddp->join({.divide_by_initial_world_size = by_initial_size});
    for (int step = 0; step < own_of(counts_); ++step) train(ddp, step, true);
  }

  // Ranks without data have batches of no samples.
  void with_empty_batches() {
    convert_sync_batchnorm(net_);
    Ddp ddp(net_, {.bucket_cap_mb = kBucketMiB});
    for (int step = 0; step < max_of(counts_); ++step) train(ddp, step, step < own_of(counts_));
  }

  // The ranks that have data form a group of their own.
  void in_groups() {
    std::vector<int> ranks;
    std::optional<Ddp> ddp;
    for (int step = 0; step < max_of(counts_); ++step) {
      const auto before = ranks;
      ranks = active(step);
      if (ranks != before) {
        ddp.reset();
        if (const auto group = context_.new_group(ranks)) {
          convert_sync_batchnorm(net_, group);
          ddp.emplace(net_,
                      DistributedDataParallelOptions{.process_group = group, .bucket_cap_mb = kBucketMiB});
        }
      }
      if (ddp) train(*ddp, step, true);
    }
  }

  std::vector<int> active(int step) const {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < counts_.size(); ++rank) {
      if (counts_[rank] > step) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }
  const std::vector<Tensors>& states() const { return states_; }  // [step]
  Tensors final_state() const { return state_of(*net_); }

 private:
  using Ddp = DistributedDataParallel<testing::ResNet18>;
  static constexpr double kBucketMiB = 0.01;

  void train(Ddp& ddp, int step, bool has_data) {
    const int rank = context_.rank();
    manual_seed(100 * static_cast<std::uint64_t>(rank) + static_cast<std::uint64_t>(step));
    const auto images = at::randn({has_data ? rank + 2 : 0, 1, 12, 12}, at::kDouble);
    optimizer_->zero_grad();
    (ddp->forward(images).square().sum() * 0.01).backward();
    optimizer_->step();
    states_.push_back(state_of(*net_));
  }

  const Context& context_;
  std::vector<int> counts_;
  testing::ResNet18 net_{nullptr};
  std::optional<torch::optim::SGD> optimizer_;
  std::vector<Tensors> states_;
};

void run_over(const char* backend, const testing::Scenario& scenario, int ranks) {
  testing::expect_all_passed(
      testing::run_ranks(scenario, {.world_size = ranks, .env = {{testing::kBackendVariable, backend}}}));
}

void check_resnet(const Context& context, const std::vector<int>& counts) {
  ResNetTraining joined(context, counts);
  ResNetTraining with_empty(context, counts);
  joined.in_join(true);
  with_empty.with_empty_batches();
  for (std::size_t step = 0; step < joined.states().size(); ++step) {
    SCOPED_TRACE(step);
    expect_equal(joined.states()[step], with_empty.states()[step], 0);
  }
  expect_equal(joined.final_state(), with_empty.final_state(), 0);

  ResNetTraining by_active(context, counts);
  ResNetTraining in_groups(context, counts);
  by_active.in_join(false);
  in_groups.in_groups();
  ASSERT_EQ(by_active.states().size(), in_groups.states().size());
  for (std::size_t step = 0; step < by_active.states().size(); ++step) {
    SCOPED_TRACE(step);
    // A layer of a group of one is a plain BatchNorm, which rounds differently.
    const bool is_alone = by_active.active(static_cast<int>(step)).size() == 1;
    expect_equal(by_active.states()[step], in_groups.states()[step], is_alone ? 1e-9 : 0);
  }
  expect_same_on_all_ranks(context, by_active.final_state());
}

const testing::Scenario resnet("joined batch norm: resnet", [] {
  const auto context = init_under_test();
  check_resnet(context, context.world_size() == 2 ? std::vector{3, 1} : std::vector{3, 2, 0});
});

TEST(JoinedBatchNorm, NormalizesOverTheRanksThatHaveData) {
  run_over("gloo", resnet, 2);
  run_over("shm", resnet, 3);
}

enum class Kind { plain, skip, accumulate, recompute, two_forwards, evaluate, without_ddp, kinds };

struct ChangingNetImpl : torch::nn::Module {
  ChangingNetImpl() {
    first = register_module("first", torch::nn::Linear(4, 6));
    first_norm = register_module("first_norm", SyncBatchNorm(6));
    second = register_module("second", torch::nn::Linear(6, 6));
    second_norm = register_module("second_norm", SyncBatchNorm(6));
    last = register_module("last", torch::nn::Linear(6, 2));
  }
  at::Tensor forward(const at::Tensor& x, Kind kind) {
    const auto y = at::relu(first_norm->forward(first->forward(x)));
    if (kind == Kind::skip) return last->forward(y);
    const auto block = [this](const at::Tensor& h) {
      return at::relu(second_norm->forward(second->forward(h)));
    };
    return last->forward(kind == Kind::recompute ? checkpoint(block, y) : block(y));
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, last{nullptr};
  SyncBatchNorm first_norm{nullptr}, second_norm{nullptr};
};
TORCH_MODULE(ChangingNet);

struct Variant {
  DistributedDataParallelOptions options = {};
  std::vector<Kind> kinds = {};
  CommHook hook = {};
  std::vector<int> counts = {};  // of batches of each rank; in the second epoch of the ranks in reverse
};

class ChangingTraining {
 public:
  explicit ChangingTraining(const Variant& variant)
      : variant_(variant),
        net_([] {
          manual_seed(1);
          return ChangingNet();
        }()),
        ddp_(net_, variant.options),
        optimizer_(net_->parameters(), 0.02) {
    if (variant.hook) ddp_->register_comm_hook(variant.hook);
  }

  void in_join() {
    for (int epoch = 0; epoch < 2; ++epoch) {
      const auto join = ddp_->join();
      for (int step = 0; step < own_of(counts_in(epoch)); ++step) train(epoch, step, true);
    }
  }
  void with_empty_batches() {
    for (int epoch = 0; epoch < 2; ++epoch) {
      const auto counts = counts_in(epoch);
      for (int step = 0; step < max_of(counts); ++step) train(epoch, step, step < own_of(counts));
    }
  }
  Tensors final_state() const { return state_of(*net_); }

 private:
  std::vector<int> counts_in(int epoch) const {
    auto counts = variant_.counts;
    if (epoch == 1) std::ranges::reverse(counts);
    return counts;
  }

  void train(int epoch, int step, bool has_data) {
    const auto kind = variant_.kinds[static_cast<std::size_t>(step) % variant_.kinds.size()];
    manual_seed(static_cast<std::uint64_t>(1000 * epoch + 10 * step + get_rank()));
    const auto input = [&] { return at::randn({has_data ? 3 + get_rank() : 0, 4}); };
    const auto loss = [&] { return ddp_->forward(input(), kind).square().sum() * 0.1; };
    optimizer_.zero_grad();
    if (kind == Kind::accumulate) {
      const auto guard = ddp_->no_sync();
      loss().backward();
    }
    if (kind == Kind::evaluate) {
      const torch::NoGradGuard no_grad;
      net_->eval();
      ddp_->forward(input(), kind);
      net_->train();
    }
    if (kind == Kind::two_forwards) {
      const auto one = loss();
      (one + loss()).backward();
    } else {
      loss().backward();
    }
    if (kind == Kind::without_ddp) {
      const torch::NoGradGuard no_grad;
      net_->forward(input(), kind);
    }
    optimizer_.step();
  }

  const Variant& variant_;
  ChangingNet net_;
  DistributedDataParallel<ChangingNet> ddp_;
  torch::optim::SGD optimizer_;
};

std::vector<Kind> all_kinds_but(Kind left_out) {
  std::vector<Kind> kinds;
  for (int i = 0; i < static_cast<int>(Kind::kinds); ++i) {
    if (static_cast<Kind>(i) != left_out) kinds.push_back(static_cast<Kind>(i));
  }
  return kinds;
}

// Makes a chain of calls for each bucket.
CommHook compress() {
  return PowerSGD({.start_powerSGD_iter = 2, .min_compression_rate = 0.5, .orthogonalization_epsilon = 1e-6});
}

const testing::Scenario changing("joined batch norm: changing calls", [] {
  const auto context = init_under_test();
  constexpr double kSmall = 0.0001;
  const std::vector<Variant> variants{
      {.options = {.broadcast_buffers = false, .bucket_cap_mb = kSmall, .find_unused_parameters = true},
       .kinds = all_kinds_but(Kind::kinds),
       .counts = {9, 2, 0}},
      {.options = {.bucket_cap_mb = kSmall, .static_graph = true},
       .kinds = {Kind::plain},
       .counts = {1, 4, 2}},
      {.options = {.bucket_cap_mb = kSmall},
       .kinds = all_kinds_but(Kind::skip),
       .hook = compress(),
       .counts = {8, 0, 3}},
  };
  for (std::size_t i = 0; i < variants.size(); ++i) {
    SCOPED_TRACE(fmt::format("variant {} on rank {}", i, context.rank()));
    auto variant = variants[i];
    variant.counts.resize(static_cast<std::size_t>(context.world_size()));
    ChangingTraining joined(variant);
    joined.in_join();
    if (variant.hook) variant.hook = compress();
    ChangingTraining expected(variant);
    expected.with_empty_batches();
    expect_equal(joined.final_state(), expected.final_state(), 0);
    expect_same_on_all_ranks(context, joined.final_state());
  }
});

TEST(JoinedBatchNorm, FollowsCallsThatChange) {
  run_over("gloo", changing, 2);
  run_over("shm", changing, 3);
}

// Rank 2 is through when rank 0 throws.
const testing::Scenario left("joined batch norm: left by an exception", [] {
  const auto context = init_under_test();
  torch::nn::Sequential net(torch::nn::Linear(2, 3), SyncBatchNorm(3), torch::nn::Linear(3, 3));
  DistributedDataParallel ddp(net);
  const auto train = [&] {
    const auto join = ddp->join();
    for (int i = 0; i < (context.rank() == 2 ? 1 : 4); ++i) {
      const auto output = ddp->forward(at::randn({4, 2}));
      if (context.rank() == 0 && i == 2) throw std::runtime_error("no more");
      output.sum().backward();
    }
  };
  if (context.rank() == 0) {
    EXPECT_THROW(train(), std::runtime_error);
  } else {
    EXPECT_THAT(train, ThrowsMessage<Error>(Not(HasSubstr("timed out"))));
  }
});

// The last backward of rank 0 misses a parameter, which its next forward reports.
const testing::Scenario incomplete("joined batch norm: an incomplete backward", [] {
  const auto context = init_under_test();
  const auto train = [&](const ProcessGroup& group) {
    ChangingNet net;
    convert_sync_batchnorm(net, group);
    DistributedDataParallel ddp(net, {.process_group = group});
    const auto join = ddp->join();
    for (int i = 0; i < (context.rank() == 0 ? 4 : 1); ++i) {
      ddp->forward(at::randn({4, 4}), i == 2 ? Kind::skip : Kind::plain).sum().backward();
    }
  };
  const ProcessGroup between_hosts(context.group().backend(), {});
  EXPECT_THAT([&] { train(between_hosts); }, ThrowsMessage<Error>(HasSubstr("second.weight")));
  EXPECT_THAT([&] { train(context.group()); }, ThrowsMessage<Error>(HasSubstr("second.weight")));
});

TEST(JoinedBatchNorm, ErrorsEndTheOtherRanksWaits) {
  run_over("gloo", left, 3);
  run_over("shm", incomplete, 2);
}

}  // namespace
}  // namespace lockstep::joined_batch_norm_test
