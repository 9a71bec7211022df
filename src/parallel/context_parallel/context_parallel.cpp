// SPDX-License-Identifier: BSD-3-Clause
#include <utility>
#include <vector>

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <lockstep/context_parallel/context_parallel.h>
#include <lockstep/nn/functional.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "context_parallel/flash_kernels.h"
#include "device/libtorch_versions.h"

namespace lockstep::context_parallel {
namespace {

using at::Tensor;

constexpr int kLength = 2;  // the dimension of positions

Tensor head_of(const Tensor& tensor, int dim = kLength) {
  return tensor.narrow(dim, 0, tensor.size(dim) / 2);
}
Tensor tail_of(const Tensor& tensor, int dim = kLength) {
  return tensor.narrow(dim, tensor.size(dim) / 2, tensor.size(dim) / 2);
}

// What this rank computes with the keys of another rank.
enum class Part { everything, causal, head_of_keys, tail_of_queries, nothing };

struct Ring {
  ProcessGroup group;
  AttentionOptions options;
  std::source_location where;

  int size() const { return group.size(); }

  // In step i a rank has the keys of the rank i places before it.
  Part part(int step) const {
    if (!options.is_causal) return Part::everything;
    if (step == 0) return Part::causal;
    const bool is_earlier = step <= group.rank();
    if (options.load_balancer == LoadBalancer::none) return is_earlier ? Part::everything : Part::nothing;
    return is_earlier ? Part::head_of_keys : Part::tail_of_queries;
  }

  // Sends to the next rank what the previous one receives. An all-to-all, since NCCL's messages in a ring
  // block each other.
  Work pass_on(const Tensor& received, const Tensor& sent) const {
    std::vector<std::int64_t> received_sizes(static_cast<std::size_t>(size()), 0);
    auto sent_sizes = received_sizes;
    received_sizes[static_cast<std::size_t>((group.rank() + size() - 1) % size())] = sent.numel();
    sent_sizes[static_cast<std::size_t>((group.rank() + 1) % size())] = sent.numel();
    return group.all_to_all_single_async(received.view(-1), sent.view(-1), received_sizes, sent_sizes, where);
  }
};

// `pair`: keys and values [2, batch, heads, length, head_dim].
Block block_of(const Tensor& query, const Tensor& pair, Part part, std::optional<double> scale) {
  const auto keys = part == Part::head_of_keys ? head_of(pair, kLength + 1) : pair;
  return {.query = part == Part::tail_of_queries ? tail_of(query) : query,
          .key = keys[0],
          .value = keys[1],
          .is_causal = part == Part::causal,
          .scale = scale};
}

at::ScalarType sum_type(const Tensor& tensor) { return at::toOpMathType(tensor.scalar_type()); }

// Adds the attention to further keys to that of the same queries to others.
void merge(const Attended& total, const Attended& more) {
  const auto weight = at::sigmoid(more.logsumexp - total.logsumexp).unsqueeze(-1);
  total.output.sub_(weight.mul(total.output - more.output));
  total.logsumexp.sub_(at::log_sigmoid(total.logsumexp - more.logsumexp));
}

// Note [Ring attention]
//
// Each rank has the queries q, keys k and values v of its part of the sequence. The pairs (k, v) go round;
// while one is computed with, it is already on its way to the next rank:
//
//     step     rank 0         rank 1         rank 2
//      0       q0 with k0     q1 with k1     q2 with k2
//      1       q0 with k2     q1 with k0     q2 with k1
//      2       q0 with k1     q1 with k2     q2 with k0
//
// merge() joins the attention to different keys by their logsumexp, in float for half precision. A rank adds
// in the order of its steps, so the result is the same in every run.
//
// With a causal mask, LoadBalancer::head_tail gives rank r the parts r and 2n-1-r of 2n. Keys of an earlier
// rank then matter by their head only, for all queries; keys of a later rank matter whole, for the tail of
// the queries (Part). After step 0, each rank computes half a block in each step.
//
// Backward sends the pairs round again, and with them the sums of their gradients, one step behind: a rank
// adds its part to the sum that arrives and passes it on. After n steps each sum is at its owner.
Attended attend_to_all(const Tensor& query, const Tensor& key, const Tensor& value, const Ring& ring) {
  auto pair = at::stack({key, value});
  auto next = ring.size() > 1 ? at::empty_like(pair) : Tensor();
  Attended total;
  for (int step = 0; step < ring.size(); ++step) {
    const bool is_last = step + 1 == ring.size();
    auto passed = is_last ? std::nullopt : std::optional(ring.pass_on(next, pair));
    const auto part = ring.part(step);
    if (part != Part::nothing) {
      const auto found = attend(block_of(query, pair, part, ring.options.scale));
      if (step == 0) {
        total = {found.output.to(sum_type(query)), found.logsumexp};
      } else {
        const bool is_tail = part == Part::tail_of_queries;
        merge(is_tail ? Attended{tail_of(total.output), tail_of(total.logsumexp)} : total,
              {found.output.to(sum_type(query)), found.logsumexp});
      }
    }
    if (passed) passed->wait();
    std::swap(pair, next);
  }
  return {total.output.to(query.scalar_type()), total.logsumexp};
}

// The gradients of keys and values go with them, one step behind, and end where they belong.
BlockGradients gradients_of_all(const Tensor& query, const Tensor& key, const Tensor& value,
                                const Attended& whole, const Tensor& output_gradient, const Ring& ring) {
  auto pair = at::stack({key, value});
  auto next = ring.size() > 1 ? at::empty_like(pair) : Tensor();
  const auto of_query = at::zeros_like(query, query.options().dtype(sum_type(query)));
  auto of_pair = at::zeros(pair.sizes(), pair.options().dtype(sum_type(pair)));
  auto next_of_pair = ring.size() > 1 ? at::empty_like(of_pair) : Tensor();
  std::optional<Work> gradients_passed;
  for (int step = 0; step < ring.size(); ++step) {
    const bool is_last = step + 1 == ring.size();
    auto passed = is_last ? std::nullopt : std::optional(ring.pass_on(next, pair));
    const auto part = ring.part(step);
    std::optional<BlockGradients> own;
    if (part != Part::nothing) {
      const bool is_tail = part == Part::tail_of_queries;
      own = gradients_of(block_of(query, pair, part, ring.options.scale),
                         is_tail ? Attended{tail_of(whole.output), tail_of(whole.logsumexp)} : whole,
                         is_tail ? tail_of(output_gradient) : output_gradient);
      (is_tail ? tail_of(of_query) : of_query).add_(own->query);
    }
    if (gradients_passed) {
      gradients_passed->wait();
      std::swap(of_pair, next_of_pair);
    }
    if (own) {
      const auto keys = part == Part::head_of_keys ? head_of(of_pair, kLength + 1) : of_pair;
      keys[0].add_(own->key);
      keys[1].add_(own->value);
    }
    if (ring.size() > 1) gradients_passed = ring.pass_on(next_of_pair, of_pair);
    if (passed) passed->wait();
    std::swap(pair, next);
  }
  if (gradients_passed) {
    gradients_passed->wait();
    of_pair = next_of_pair;
  }
  return {of_query.to(query.scalar_type()), of_pair[0].to(key.scalar_type()),
          of_pair[1].to(value.scalar_type())};
}

class RingAttentionBackward : public torch::autograd::Node {
 public:
  // `whole.output` has no history, but the version of the tensor that has.
  RingAttentionBackward(const Tensor& query, const Tensor& key, const Tensor& value, const Attended& whole,
                        Ring ring)
      : query_(query, false),
        key_(key, false),
        value_(value, false),
        output_(whole.output, false),
        logsumexp_(whole.logsumexp, false),
        ring_(std::move(ring)) {}

  std::string name() const override { return "RingAttentionBackward"; }

  void release_variables() override {
    for (auto* saved : {&query_, &key_, &value_, &output_, &logsumexp_}) saved->reset_data();
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (c10::GradMode::is_enabled()) {
      throw_error<Error>(
          "context_parallel::scaled_dot_product_attention: backward with create_graph is not supported");
    }
    const auto query = query_.unpack();
    // Other ranks wait for this one's part.
    const auto gradient = gradients[0].defined() ? gradients[0] : at::zeros_like(query);
    const auto found = gradients_of_all(query, key_.unpack(), value_.unpack(),
                                        {output_.unpack(), logsumexp_.unpack()}, gradient, ring_);
    return {found.query, found.key, found.value};
  }

 private:
  torch::autograd::SavedVariable query_, key_, value_, output_, logsumexp_;
  Ring ring_;
};

void check(const Tensor& query, const Tensor& key, const Tensor& value, const Ring& ring) {
  const auto refuse = [&](const std::string& what) {
    throw_error<ArgumentError>(
        "{}context_parallel::scaled_dot_product_attention: {}: query [{}] of {} on {}, key "
        "[{}] of {} on {}, value [{}] of {} on {}: {}",
        line_prefix(ring.where), numbered_rank(ring.group.rank(), ring.size()),
        fmt::join(query.sizes(), ", "), query.dtype().name(), query.device().str(),
        fmt::join(key.sizes(), ", "), key.dtype().name(), key.device().str(), fmt::join(value.sizes(), ", "),
        value.dtype().name(), value.device().str(), what);
  };
  if (query.dim() != 4 || key.dim() != 4 || key.sizes() != value.sizes() || query.size(0) != key.size(0) ||
      query.size(3) != key.size(3))
    refuse("they are [batch, heads, length, head_dim], key and value of one shape");
  if (key.size(1) == 0 || query.size(1) % key.size(1) != 0)
    refuse("the heads of the query are a multiple of those of the key");
  if (query.numel() == 0 || key.numel() == 0) refuse("they are not empty");
  if (query.scalar_type() != key.scalar_type() || query.scalar_type() != value.scalar_type() ||
      query.device() != key.device() || query.device() != value.device())
    refuse("they have one dtype and one device");
  const bool is_half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  if (!query.is_floating_point() || !(query.is_cpu() || (query.is_cuda() && is_half)))
    refuse("the flash kernels take floating dtypes on the CPU, float16 and bfloat16 on GPUs");
  if (!ring.options.is_causal) return;
  if (query.size(kLength) != key.size(kLength))
    refuse("is_causal needs as many queries as keys, so no cache of earlier keys");
  if (ring.options.load_balancer == LoadBalancer::head_tail && query.size(kLength) % 2 != 0)
    refuse("LoadBalancer::head_tail gives each rank two equal parts of the sequence, an even length");
}

// As LibTorch's own attention.
Tensor in_autocast_type(const Tensor& tensor) {
  const auto device = tensor.device().type();
  if (!at::autocast::is_autocast_available(device) || !at::autocast::is_autocast_enabled(device))
    return tensor;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), tensor, device);
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& given_query, const Tensor& given_key,
                                    const Tensor& given_value, const DeviceMesh& mesh,
                                    const AttentionOptions& options, std::source_location where) {
  const CallerPlace place(where);
  using namespace torch::autograd;
  const auto query = in_autocast_type(given_query), key = in_autocast_type(given_key),
             value = in_autocast_type(given_value);
  const Ring ring{mesh.get_group(), options, where};
  check(query, key, value, ring);
  const bool records = c10::GradMode::is_enabled() && compute_requires_grad(query, key, value);
  Attended whole;
  {
    const c10::AutoGradMode no_history(false);
    whole = attend_to_all(query.detach(), key.detach(), value.detach(), ring);
  }
  if (!records) return whole.output;
  auto output = whole.output.detach();
  const auto node = libtorch::make_node<RingAttentionBackward>(query, key, value, whole, ring);
  node->set_next_edges(collect_next_edges(query, key, value));
  set_history(output, node);
  return output;
}

namespace {

using at::Tensor;

std::int64_t dim_of(const Tensor& tensor, std::int64_t dim, const char* caller) {
  if (dim >= -tensor.dim() && dim < tensor.dim()) return dim < 0 ? dim + tensor.dim() : dim;
  throw_error<ArgumentError>("context_parallel::{}: dim {} of a tensor of {} dimensions", caller, dim,
                             tensor.dim());
}

// The size of each of `parts` equal parts.
std::int64_t divided(const Tensor& tensor, std::int64_t dim, std::int64_t parts, const char* caller,
                     const ProcessGroup& group) {
  const auto size = tensor.size(dim);
  if (size % parts == 0) return size / parts;
  throw_error<ArgumentError>(
      "context_parallel::{}: {}: dimension {} of a tensor of shape {} has {} elements, which is "
      "not a multiple of {}; pad the sequence{}",
      caller, numbered_rank(group.rank(), group.size()), dim, fmt::join(tensor.sizes(), "x"), size, parts,
      parts == group.size() ? "" : ", or use LoadBalancer::none");
}

}  // namespace

Tensor shard(const Tensor& tensor, const DeviceMesh& mesh, std::int64_t given_dim, LoadBalancer load_balancer,
             std::source_location) {
  const auto group = mesh.get_group();
  const auto dim = dim_of(tensor, given_dim, "shard");
  const std::int64_t rank = group.rank(), ranks = group.size();
  if (load_balancer == LoadBalancer::none) {
    const auto count = divided(tensor, dim, ranks, "shard", group);
    return tensor.narrow(dim, rank * count, count).contiguous();
  }
  const auto count = divided(tensor, dim, 2 * ranks, "shard", group);
  return at::cat(
      {tensor.narrow(dim, rank * count, count), tensor.narrow(dim, (2 * ranks - 1 - rank) * count, count)},
      dim);
}

Tensor unshard(const Tensor& part, const DeviceMesh& mesh, std::int64_t given_dim, LoadBalancer load_balancer,
               std::source_location where) {
  const CallerPlace place(where);
  const auto group = mesh.get_group();
  const auto dim = dim_of(part, given_dim, "unshard");
  const bool is_balanced = load_balancer == LoadBalancer::head_tail;
  const auto head = is_balanced ? divided(part, dim, 2, "unshard", group) : part.size(dim);
  const auto parts = nn::functional::all_gather(part, group, where);
  std::vector<Tensor> pieces;
  for (const auto& each : parts) pieces.push_back(each.narrow(dim, 0, head));
  if (is_balanced) {
    for (auto each = parts.rbegin(); each != parts.rend(); ++each)
      pieces.push_back(each->narrow(dim, head, head));
  }
  return at::cat(pieces, dim);
}

}  // namespace lockstep::context_parallel
