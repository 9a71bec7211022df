// SPDX-License-Identifier: BSD-3-Clause
// clip_grad_norm_() of every strategy beside torch.nn.utils.clip_grad_norm_: norms and clipped gradients.
#include <cstring>
#include <functional>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/fsdp/fully_shard.h>
#include <lockstep/pipelining/pipeline.h>
#include <lockstep/rendezvous/init.h>
#include <lockstep/runtime/device_mesh.h>
#include <lockstep/tensor_parallel/parallelize_module.h>

#include "parity/both_sides.h"
#include "parity/ddp_record.h"
#include "support/ranks.h"

namespace lockstep::testing::clip_grad_norm_test {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr double kMaxNorm = 0.125;
constexpr std::size_t kGradients = 5;

struct ClipNetImpl : torch::nn::Module {
  explicit ClipNetImpl(c10::ScalarType dtype) {
    fc1 = register_module("fc1", torch::nn::Linear(4, 6));
    fc2 = register_module("fc2", torch::nn::Linear(6, 5));
    one = register_parameter("one", torch::zeros({1}));
    to(dtype);
  }
  // Every parameter gets a gradient.
  Tensor forward(const Tensor& x) {
    Tensor sum = x.sum();
    for (const auto& parameter : parameters()) sum = sum + parameter.abs().sum();
    return sum;
  }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
  Tensor one;
};
TORCH_MODULE(ClipNet);

struct Dtype {
  const char* name;
  c10::ScalarType dtype;
  bool same_bits;    // of one process; else PyTorch rounds norms to the dtype
  double tolerance;  // relative, where the order of the additions or the precision of the norm differs
};
constexpr std::array kDtypes{
    Dtype{"float32", at::kFloat, true, 1e-6}, Dtype{"float64", at::kDouble, true, 1e-14},
    Dtype{"bfloat16", at::kBFloat16, false, 0.03}, Dtype{"complex64", at::kComplexFloat, true, 1e-6},
    Dtype{"complex128", at::kComplexDouble, true, 1e-14}};
constexpr std::array kNormTypes{"1", "2", "3", "0.5", "inf", "-inf", "0", "-1"};

std::string case_name(const Dtype& dtype, const std::string& norm_type) {
  return fmt::format("{}_{}", dtype.name, norm_type);
}

// One for each parameter of the whole net.
Tensors whole_gradients(c10::ScalarType dtype) {
  Tensors gradients;
  ClipNet net(dtype);
  for (const auto& parameter : net->parameters()) {
    const auto source = at::detail::createCPUGenerator(gradients.size());
    auto sizes = parameter.sizes().vec();
    sizes.push_back(2);
    const auto numbers = torch::randn(sizes, source, at::kDouble);
    const auto values = c10::isComplexType(dtype) ? at::view_as_complex(numbers) : numbers.select(-1, 0);
    gradients.push_back(values.contiguous().to(dtype));
  }
  return gradients;
}

Tensor rows_of(const Tensor& whole, std::int64_t dim, std::int64_t rank, std::int64_t ranks) {
  const auto chunk = (whole.size(dim) + ranks - 1) / ranks;
  const auto first = std::min(rank * chunk, whole.size(dim));
  return whole.narrow(dim, first, std::min(chunk, whole.size(dim) - first)).clone();
}

struct Clipped {
  double norm = 0;
  Tensors gradients = {};  // whole ones, or this rank's parts of them
  Tensors before = {};     // alike
};
using Strategy = std::function<Clipped(c10::ScalarType dtype, const ClipGradNormOptions& options)>;

Clipped clip_plain(c10::ScalarType dtype, const ClipGradNormOptions& options) {
  ClipNet net(dtype);
  const auto gradients = whole_gradients(dtype);
  Clipped result{.before = gradients};
  for (std::size_t i = 0; i < gradients.size(); ++i)
    result.gradients.push_back(net->parameters()[i].mutable_grad() = gradients[i].clone());
  result.norm = clip_grad_norm_(*net, kMaxNorm, options);
  return result;
}

Clipped clip_ddp(c10::ScalarType dtype, const ClipGradNormOptions& options) {
  ClipNet net(dtype);
  DistributedDataParallel<ClipNet> ddp(net);
  ddp->forward(torch::ones({2})).backward();
  Clipped result{.before = whole_gradients(dtype)};
  for (std::size_t i = 0; i < result.before.size(); ++i) {
    auto gradient = net->parameters()[i].mutable_grad();
    gradient.copy_(result.before[i]);
    result.gradients.push_back(gradient);
  }
  result.norm = clip_grad_norm_(ddp, kMaxNorm, options);
  return result;
}

// Rank 1 on has no element of the last parameter.
Clipped clip_sharded(c10::ScalarType dtype, const ClipGradNormOptions& options) {
  ClipNet net(dtype);
  const auto sharded = fully_shard(*net);
  Clipped result;
  std::size_t index = 0;
  const auto gradients = whole_gradients(dtype);
  for (auto& shard : sharded.parameters()) {
    result.before.push_back(rows_of(gradients[index++], 0, get_rank(), get_world_size()));
    result.gradients.push_back(shard.mutable_grad() = result.before.back().clone());
  }
  result.norm = clip_grad_norm_(sharded, kMaxNorm, options);
  return result;
}

Clipped clip_tensor_parallel(c10::ScalarType dtype, const ClipGradNormOptions& options) {
  namespace tp = tensor_parallel;
  ClipNet net(dtype);
  const auto mesh = init_device_mesh({get_world_size()}, {.mesh_dim_names = {"tp"}});
  tp::parallelize_module(*net, mesh, {{"fc1", tp::ColwiseParallel()}, {"fc2", tp::RowwiseParallel()}});
  Clipped result;
  const auto names = net->named_parameters();
  const auto gradients = whole_gradients(dtype);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const bool is_cut = names[i].key().starts_with("fc1") || names[i].key() == "fc2.weight";
    const auto dim = names[i].key() == "fc2.weight" ? 1 : 0;
    result.before.push_back(is_cut ? rows_of(gradients[i], dim, get_rank(), get_world_size()) : gradients[i]);
    result.gradients.push_back(names[i].value().mutable_grad() = result.before.back().clone());
  }
  result.norm = clip_grad_norm_(*net, kMaxNorm, options);
  return result;
}

// The first stage has fc1, the last one the others.
Clipped clip_pipeline(c10::ScalarType dtype, const ClipGradNormOptions& options) {
  ClipNet net(dtype);
  const auto gradients = whole_gradients(dtype);
  struct Stage : torch::nn::Module {
    Tensor forward(const Tensor& x) { return x; }
  };
  const auto stage = std::make_shared<Stage>();
  const bool is_first = get_rank() == 0, is_last = get_rank() + 1 == get_world_size();
  Clipped result;
  const auto names = net->named_parameters();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (names[i].key().starts_with("fc1") ? !is_first : !is_last) continue;
    auto parameter = stage->register_parameter(std::to_string(i), names[i].value());
    result.before.push_back(gradients[i]);
    result.gradients.push_back(parameter.mutable_grad() = gradients[i].clone());
  }
  const auto forward = [](const AnyPyTree& x) { return x; };
  const pipelining::ScheduleGPipe schedule(
      pipelining::PipelineStage(stage, forward, get_rank(), get_world_size(), {}), 2,
      [](const Tensor& y, const Tensor&) { return y.sum(); });
  result.norm = schedule.clip_grad_norm_(kMaxNorm, options);
  return result;
}

const std::vector<std::pair<std::string, Strategy>>& strategies() {
  static const std::vector<std::pair<std::string, Strategy>> all{{"plain", clip_plain},
                                                                 {"ddp", clip_ddp},
                                                                 {"sharded", clip_sharded},
                                                                 {"tensor_parallel", clip_tensor_parallel},
                                                                 {"pipeline", clip_pipeline}};
  return all;
}

// Doubles, as their bits.
Record record_of_doubles(const std::string& name, const Tensor& tensor) {
  const auto real = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  const auto row = real.detach().to(at::kDouble).contiguous().view({-1});
  Record record{name, std::vector<float>(2 * static_cast<std::size_t>(row.numel()))};
  std::memcpy(record.values.data(), row.const_data_ptr(), row.nbytes());
  return record;
}

std::vector<double> doubles_of(const Record& record) {
  std::vector<double> numbers(record.values.size() / 2);
  std::memcpy(numbers.data(), record.values.data(), numbers.size() * sizeof(double));
  return numbers;
}

// A strategy's norm, its clipped gradients, and what the norm makes of the gradients.
void add_records(std::vector<Record>& records, const std::string& name, const Clipped& clipped) {
  records.push_back(record_of_doubles(name, torch::tensor({clipped.norm}, at::kDouble)));
  const auto factor = std::min(1.0, kMaxNorm / (clipped.norm + 1e-6));
  for (std::size_t i = 0; i < clipped.gradients.size(); ++i) {
    records.push_back(record_of_doubles("clipped", clipped.gradients[i]));
    records.push_back(record_of_doubles("expected", clipped.before[i] * factor));
  }
}

const Scenario clip_cases("clip_grad_norm cases", [] {
  as_parity_ranks([](const Context& context) {
    for (const auto& dtype : kDtypes) {
      for (const std::string norm_type : kNormTypes) {
        const ClipGradNormOptions options{.norm_type = std::stod(norm_type)};
        std::vector<Record> records;
        for (const auto& [name, strategy] : strategies())
          add_records(records, name, strategy(dtype.dtype, options));
        write_records(record_file(record_folder(), case_name(dtype, norm_type), context.rank()), records);
      }
    }
  });
});

void expect_near(const Record& ours, const Record& expected, double tolerance) {
  const auto all = doubles_of(ours), reference = doubles_of(expected);
  ASSERT_EQ(all.size(), reference.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    EXPECT_NEAR(all[i], reference[i], tolerance * std::abs(reference[i])) << ours.name << " " << i;
}

void expect_same_bits(const Record& ours, const Record& python) {
  EXPECT_EQ(first_difference(python, {python.name, ours.values}), "") << python.name;
}

void compare(const Dtype& dtype, const std::vector<Record>& python, const std::vector<Record>& ours) {
  const auto& norm = python.front();
  std::size_t gradient = 0;  // of Python's plain module
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (ours[i].name == "clipped") {
      expect_near(ours[i], ours[i + 1], dtype.same_bits ? dtype.tolerance : 0.01);
      if (gradient < kGradients && dtype.same_bits) expect_same_bits(ours[i], python[++gradient]);
    } else if (ours[i].name != "expected") {
      SCOPED_TRACE(ours[i].name);
      const bool is_whole = ours[i].name == "plain" || ours[i].name == "ddp";
      gradient = is_whole ? 0 : kGradients;
      if (is_whole && dtype.same_bits) {
        expect_same_bits(ours[i], norm);
      } else {
        expect_near(ours[i], norm, dtype.tolerance);
      }
      if (ours[i].name == "sharded" && python.back().name == "sharded")
        expect_near(ours[i], python.back(), 2 * dtype.tolerance);
    }
  }
}

class ClipGradNormParity : public ::testing::TestWithParam<int> {};

TEST_P(ClipGradNormParity, NormsAndGradientsOfEveryStrategy) {
  std::vector<std::string> cases;
  for (const auto& dtype : kDtypes)
    for (const std::string norm_type : kNormTypes)
      cases.push_back(
          fmt::format("name={} dtype={} norm_type={}", case_name(dtype, norm_type), dtype.name, norm_type));
  const BothSides sides("parity/clip_grad_norm.py", clip_cases, cases, "shm", GetParam());
  ASSERT_FALSE(HasFailure());
  for (const auto& dtype : kDtypes) {
    for (const std::string norm_type : kNormTypes) {
      for (int rank = 0; rank < GetParam(); ++rank) {
        SCOPED_TRACE(fmt::format("{}, rank {} of {}", case_name(dtype, norm_type), rank, GetParam()));
        const auto name = case_name(dtype, norm_type);
        compare(dtype, read_records(sides.python_file(name, rank)), read_records(sides.our_file(name, rank)));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ClipGradNormParity, ::testing::Values(2, 3));

}  // namespace
}  // namespace lockstep::testing::clip_grad_norm_test
