// SPDX-License-Identifier: BSD-3-Clause
#include "backends/shm/shm_backend.h"

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::backends {
namespace {

using shm::Element;
using shm::Kind;
using shm::Reduction;
using shm::Request;
using Tensors = ShmBackend::Tensors;

// A call that keeps its tensors alive until it is finished, waited for or not.
template <class Call>
class Keeping : public Call {
 public:
  template <class... Arguments>
  explicit Keeping(Tensors kept, Arguments&&... arguments)
      : Call(std::forward<Arguments>(arguments)...), kept_(std::move(kept)) {}

 private:
  Tensors kept_;
};

class ShmWork : public c10d::Work {
 public:
  ShmWork(int rank, c10d::OpType op, std::shared_ptr<shm::Connection> connection,
          std::shared_ptr<shm::Call> call, std::chrono::milliseconds timeout)
      : Work(rank, op), connection_(std::move(connection)), call_(std::move(call)), timeout_(timeout) {}

  bool isCompleted() override { return connection_->engine().test(*call_); }
  bool isSuccess() const override { return call_->finished(); }
  bool wait(std::chrono::milliseconds timeout) override {
    connection_->engine().wait(*call_, timeout == kNoTimeout ? timeout_ : timeout);
    return true;
  }
  int sourceRank() const override {
    const auto* receive = dynamic_cast<const shm::Receive*>(call_.get());
    return receive != nullptr ? receive->source_rank() : -1;
  }

 private:
  std::shared_ptr<shm::Connection> connection_;
  std::shared_ptr<shm::Call> call_;
  std::chrono::milliseconds timeout_;
};

Element element_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
    case c10::ScalarType::ComplexFloat:
      return Element::f32;
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexDouble:
      return Element::f64;
    case c10::ScalarType::Half:
      return Element::f16;
    case c10::ScalarType::BFloat16:
      return Element::bf16;
    case c10::ScalarType::Char:
      return Element::i8;
    case c10::ScalarType::Byte:
      return Element::u8;
    case c10::ScalarType::Short:
      return Element::i16;
    case c10::ScalarType::Int:
      return Element::i32;
    case c10::ScalarType::Long:
      return Element::i64;
    case c10::ScalarType::UInt16:
      return Element::u16;
    case c10::ScalarType::UInt32:
      return Element::u32;
    case c10::ScalarType::UInt64:
      return Element::u64;
    case c10::ScalarType::Bool:
      return Element::boolean;
    default:
      throw ArgumentError(fmt::format("the shm backend does not carry {} tensors", c10::toString(dtype)));
  }
}

std::size_t bytes_of(const at::Tensor& tensor) { return tensor.nbytes(); }

// What goes over the wire is the memory as it lies there.
void check(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.layout() != c10::kStrided) {
    throw ArgumentError(fmt::format("the shm backend needs dense CPU tensors, and this one is {} on {}",
                                    c10::str(tensor.layout()), tensor.device().str()));
  }
  if (!tensor.is_contiguous() && !tensor.is_non_overlapping_and_dense()) {
    throw ArgumentError("the shm backend needs tensors without gaps; pass tensor.contiguous()");
  }
}

shm::Source source_of(const at::Tensor& tensor) {
  check(tensor);
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), bytes_of(tensor)};
}

shm::Target target_of(const at::Tensor& tensor) {
  check(tensor);
  return {static_cast<std::byte*>(tensor.data_ptr()), bytes_of(tensor)};
}

std::vector<shm::Source> sources_of(const Tensors& tensors) {
  std::vector<shm::Source> sources;
  sources.reserve(tensors.size());
  for (const auto& tensor : tensors) sources.push_back(source_of(tensor));
  return sources;
}

std::vector<shm::Target> targets_of(const Tensors& tensors) {
  std::vector<shm::Target> targets;
  targets.reserve(tensors.size());
  for (const auto& tensor : tensors) targets.push_back(target_of(tensor));
  return targets;
}

const at::Tensor& only(const Tensors& tensors, const char* what) {
  if (tensors.size() != 1) {
    throw ArgumentError(fmt::format("the shm backend takes one tensor as {}, not {}", what, tensors.size()));
  }
  return tensors.front();
}

const Tensors& only(const std::vector<Tensors>& lists, const char* what) {
  if (lists.size() != 1) {
    throw ArgumentError(fmt::format("the shm backend takes one list as {}, not {}", what, lists.size()));
  }
  return lists.front();
}

Reduction reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return Reduction::sum;
    case c10d::ReduceOp::AVG:
      return Reduction::average;
    case c10d::ReduceOp::PRODUCT:
      return Reduction::product;
    case c10d::ReduceOp::MIN:
      return Reduction::min;
    case c10d::ReduceOp::MAX:
      return Reduction::max;
    case c10d::ReduceOp::BAND:
      return Reduction::band;
    case c10d::ReduceOp::BOR:
      return Reduction::bor;
    case c10d::ReduceOp::BXOR:
      return Reduction::bxor;
    default:
      throw ArgumentError("the shm backend does not have this reduction (PREMUL_SUM, a custom one)");
  }
}

Request reducing(Kind kind, const at::Tensor& tensor, const c10d::ReduceOp& op) {
  Request request{.kind = kind, .element = element_of(tensor.scalar_type()), .reduction = reduction_of(op)};
  const bool additive = request.reduction == Reduction::sum || request.reduction == Reduction::average;
  if ((tensor.is_complex() && !additive) ||
      shm::reduce_kernel(request.element, request.reduction) == nullptr) {
    throw ArgumentError(fmt::format("the shm backend cannot reduce {} tensors by {}",
                                    c10::toString(tensor.scalar_type()), shm::name_of(request.reduction)));
  }
  return request;
}

// What is reduced as it lies there, without any view of it.
bool can_reduce_plainly(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Float || dtype == c10::ScalarType::Double ||
         dtype == c10::ScalarType::Half || dtype == c10::ScalarType::BFloat16 ||
         dtype == c10::ScalarType::Int || dtype == c10::ScalarType::Long;
}

// Of the reductions that all of these have.
Reduction plain_reduction(ReduceOp op) {
  switch (op) {
    case ReduceOp::PRODUCT:
      return Reduction::product;
    case ReduceOp::MIN:
      return Reduction::min;
    case ReduceOp::MAX:
      return Reduction::max;
    default:
      return Reduction::sum;
  }
}

Request copying(Kind kind, const at::Tensor& tensor, int root = 0) {
  return {.kind = kind, .element = element_of(tensor.scalar_type()), .root = root};
}

// The bytes of each rank's part of a contiguous tensor: equal parts, or as many rows as `rows` says.
std::vector<std::size_t> part_lengths(const at::Tensor& tensor, int size,
                                      const std::vector<std::int64_t>& rows) {
  if (!tensor.is_contiguous()) throw ArgumentError("the shm backend cuts contiguous tensors only");
  const auto parts = static_cast<std::size_t>(size);
  std::vector<std::size_t> lengths(parts, bytes_of(tensor) / parts);
  if (rows.empty() && tensor.numel() % size != 0) {
    throw ArgumentError(
        fmt::format("a tensor of {} elements cannot be cut into {} equal parts", tensor.numel(), size));
  }
  const auto row_bytes = tensor.dim() > 0 && tensor.size(0) > 0
                             ? bytes_of(tensor) / static_cast<std::size_t>(tensor.size(0))
                             : std::size_t{0};
  for (std::size_t i = 0; i < rows.size(); ++i) lengths.at(i) = static_cast<std::size_t>(rows[i]) * row_bytes;
  return lengths;
}

std::vector<shm::Source> source_parts(const at::Tensor& tensor, int size,
                                      const std::vector<std::int64_t>& rows = {}) {
  const auto whole = source_of(tensor);
  std::vector<shm::Source> parts;
  const auto* start = whole.data;
  for (const auto length : part_lengths(tensor, size, rows)) {
    parts.push_back({start, length});
    start += length;
  }
  return parts;
}

std::vector<shm::Target> target_parts(const at::Tensor& tensor, int size,
                                      const std::vector<std::int64_t>& rows = {}) {
  const auto whole = target_of(tensor);
  std::vector<shm::Target> parts;
  auto* start = whole.data;
  for (const auto length : part_lengths(tensor, size, rows)) {
    parts.push_back({start, length});
    start += length;
  }
  return parts;
}

Tensors joined(const Tensors& first, const Tensors& second) {
  Tensors all = first;
  all.insert(all.end(), second.begin(), second.end());
  return all;
}

}  // namespace

ShmBackend::ShmBackend(int rank, int size, std::shared_ptr<shm::Connection> connection,
                       std::chrono::milliseconds timeout)
    : Backend(rank, size), connection_(std::move(connection)), timeout_(timeout) {}

ShmBackend::~ShmBackend() { connection_->engine().leave(); }

void ShmBackend::abort() { connection_->engine().abort(); }

std::chrono::milliseconds ShmBackend::limit(std::chrono::milliseconds asked) const {
  return asked == c10d::kUnsetTimeout || asked == kNoTimeout ? timeout_ : asked;
}

at::Tensor ShmBackend::allocateTensor(long size, at::TensorOptions options) {
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  if (!options.device().is_cpu()) {
    throw ArgumentError("the shm backend allocates on the CPU, not on " + options.device().str());
  }
  auto connection = connection_;
  auto* const memory = connection->heap().allocate(static_cast<std::size_t>(size) * c10::elementSize(dtype));
  return at::from_blob(
      memory, {size}, [connection](void* start) { connection->heap().free(static_cast<std::byte*>(start)); },
      options);
}

ShmBackend::WorkPtr ShmBackend::issue(c10d::OpType op, Request request, Tensors kept,
                                      std::chrono::milliseconds timeout) {
  auto& engine = connection_->engine();
  request.log_number = log_number_;
  auto call = std::make_shared<Keeping<shm::Collective>>(std::move(kept), engine.team(), std::move(request));
  engine.start(call, limit(timeout));
  return c10::make_intrusive<ShmWork>(getRank(), op, connection_, std::move(call), limit(timeout));
}

bool ShmBackend::takes(const at::Tensor& tensor, ReduceOp op) const {
  const bool is_plain =
      op == ReduceOp::SUM || op == ReduceOp::PRODUCT || op == ReduceOp::MIN || op == ReduceOp::MAX;
  return is_plain && tensor.defined() && tensor.is_cpu() && tensor.layout() == c10::kStrided &&
         tensor.is_contiguous() && !tensor.is_neg() && tensor.nbytes() <= shm::kSmallBytes &&
         tensor.numel() > 0 && can_reduce_plainly(tensor.scalar_type());
}

ShmBackend::WorkPtr ShmBackend::all_reduce_directly(const at::Tensor& tensor, ReduceOp op,
                                                    std::uint64_t number) {
  const Request kind{.kind = Kind::all_reduce,
                     .element = element_of(tensor.scalar_type()),
                     .reduction = plain_reduction(op)};
  const shm::Brief brief{.what = shm::packed(kind),
                         .tensor = {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()},
                         .kernel = shm::reduce_kernel(kind.element, kind.reduction),
                         .width = shm::size_of(kind.element),
                         .log_number = number};
  return issue_brief(c10d::OpType::ALLREDUCE, brief, kind, {tensor});
}

ShmBackend::WorkPtr ShmBackend::barrier_directly(std::uint64_t number) {
  const Request kind{.kind = Kind::barrier};
  return issue_brief(c10d::OpType::BARRIER, {.what = shm::packed(kind), .log_number = number}, kind, {});
}

// `kept` is what the call has to keep alive once it goes on behind the caller's back.
ShmBackend::WorkPtr ShmBackend::issue_brief(c10d::OpType op, const shm::Brief& brief, const Request& kind,
                                            at::TensorList kept) {
  auto& engine = connection_->engine();
  const auto make = [&] {
    Request request = kind;
    request.log_number = brief.log_number;
    if (brief.tensor.bytes > 0) request.outputs = {brief.tensor};
    return std::make_shared<Keeping<shm::Collective>>(kept.vec(), engine.team(), std::move(request));
  };
  auto rest = engine.start_brief(brief, make, timeout_);
  if (!rest) return {};
  return c10::make_intrusive<ShmWork>(getRank(), op, connection_, std::move(rest), timeout_);
}

ShmBackend::WorkPtr ShmBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const auto& tensor = only(tensors, "input");
  auto request = reducing(Kind::all_reduce, tensor, options.reduceOp);
  request.outputs = {target_of(tensor)};
  return issue(c10d::OpType::ALLREDUCE, std::move(request), tensors, options.timeout);
}

ShmBackend::WorkPtr ShmBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const auto& tensor = only(tensors, "input");
  auto request = copying(Kind::broadcast, tensor, static_cast<int>(options.rootRank));
  request.outputs = {target_of(tensor)};
  return issue(c10d::OpType::BROADCAST, std::move(request), tensors, options.timeout);
}

ShmBackend::WorkPtr ShmBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const auto& tensor = only(tensors, "input");
  auto request = reducing(Kind::reduce, tensor, options.reduceOp);
  request.root = static_cast<int>(options.rootRank);
  request.outputs = {target_of(tensor)};
  return issue(c10d::OpType::REDUCE, std::move(request), tensors, options.timeout);
}

ShmBackend::WorkPtr ShmBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) {
  const auto& input = only(inputs, "input");
  const auto& all = only(outputs, "output");
  auto request = copying(Kind::all_gather, input);
  request.inputs = {source_of(input)};
  request.outputs = targets_of(all);
  return issue(c10d::OpType::ALLGATHER, std::move(request), joined(all, inputs), options.timeout);
}

ShmBackend::WorkPtr ShmBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::AllgatherOptions& options) {
  auto request = copying(Kind::all_gather, input);
  request.inputs = {source_of(input)};
  request.outputs = target_parts(output, getSize());
  return issue(c10d::OpType::_ALLGATHER_BASE, std::move(request), {output, input}, options.timeout);
}

ShmBackend::WorkPtr ShmBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::GatherOptions& options) {
  const auto& input = only(inputs, "input");
  auto request = copying(Kind::gather, input, static_cast<int>(options.rootRank));
  request.inputs = {source_of(input)};
  Tensors kept = inputs;
  if (getRank() == request.root) {
    request.outputs = targets_of(only(outputs, "output"));
    kept = joined(outputs.front(), inputs);
  }
  return issue(c10d::OpType::GATHER, std::move(request), std::move(kept), options.timeout);
}

ShmBackend::WorkPtr ShmBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ScatterOptions& options) {
  const auto& output = only(outputs, "output");
  auto request = copying(Kind::scatter, output, static_cast<int>(options.rootRank));
  request.outputs = {target_of(output)};
  Tensors kept = outputs;
  if (getRank() == request.root) {
    request.inputs = sources_of(only(inputs, "input"));
    kept = joined(outputs, inputs.front());
  }
  return issue(c10d::OpType::SCATTER, std::move(request), std::move(kept), options.timeout);
}

ShmBackend::WorkPtr ShmBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  const auto& output = only(outputs, "output");
  const auto& all = only(inputs, "input");
  auto request = reducing(Kind::reduce_scatter, output, options.reduceOp);
  request.inputs = sources_of(all);
  request.outputs = {target_of(output)};
  return issue(c10d::OpType::REDUCE_SCATTER, std::move(request), joined(all, outputs), options.timeout);
}

ShmBackend::WorkPtr ShmBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options) {
  auto request = reducing(Kind::reduce_scatter, output, options.reduceOp);
  request.inputs = source_parts(input, getSize());
  request.outputs = {target_of(output)};
  return issue(c10d::OpType::_REDUCE_SCATTER_BASE, std::move(request), {output, input}, options.timeout);
}

ShmBackend::WorkPtr ShmBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                         const c10d::AllToAllOptions& options) {
  auto request = copying(Kind::all_to_all, inputs.front());
  request.inputs = sources_of(inputs);
  request.outputs = targets_of(outputs);
  return issue(c10d::OpType::ALLTOALL, std::move(request), joined(outputs, inputs), options.timeout);
}

ShmBackend::WorkPtr ShmBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                              std::vector<std::int64_t>& output_sizes,
                                              std::vector<std::int64_t>& input_sizes,
                                              const c10d::AllToAllOptions& options) {
  auto request = copying(Kind::all_to_all, input);
  request.inputs = source_parts(input, getSize(), input_sizes);
  request.outputs = target_parts(output, getSize(), output_sizes);
  return issue(c10d::OpType::ALLTOALL_BASE, std::move(request), {output, input}, options.timeout);
}

ShmBackend::WorkPtr ShmBackend::send(Tensors& tensors, int dst, int tag) {
  const auto& tensor = only(tensors, "input");
  auto& engine = connection_->engine();
  engine.check();
  const std::lock_guard lock(engine.mutex());
  auto call =
      std::make_shared<Keeping<shm::Send>>(tensors, engine.team(), engine.mailbox(), dst, tag,
                                           element_of(tensor.scalar_type()), source_of(tensor), log_number_);
  engine.start(call);
  return c10::make_intrusive<ShmWork>(getRank(), c10d::OpType::SEND, connection_, std::move(call), timeout_);
}

ShmBackend::WorkPtr ShmBackend::receive(const at::Tensor& tensor, int src, int tag) {
  auto& engine = connection_->engine();
  engine.check();
  const std::lock_guard lock(engine.mutex());
  auto call =
      std::make_shared<Keeping<shm::Receive>>(Tensors{tensor}, engine.team(), engine.mailbox(), src, tag,
                                              element_of(tensor.scalar_type()), target_of(tensor));
  engine.start(call);
  const auto op = src < 0 ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV;
  return c10::make_intrusive<ShmWork>(getRank(), op, connection_, std::move(call), timeout_);
}

ShmBackend::WorkPtr ShmBackend::recv(Tensors& tensors, int src, int tag) {
  return receive(only(tensors, "output"), src, tag);
}

ShmBackend::WorkPtr ShmBackend::recvAnysource(Tensors& tensors, int tag) {
  return receive(only(tensors, "output"), -1, tag);
}

ShmBackend::WorkPtr ShmBackend::barrier(const c10d::BarrierOptions& options) {
  return issue(c10d::OpType::BARRIER, {.kind = Kind::barrier}, {}, options.timeout);
}

// Names whoever is missing in any case: a barrier here waits for all and knows who has not come.
void ShmBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool) { barrier(options)->wait(); }

}  // namespace lockstep::backends
