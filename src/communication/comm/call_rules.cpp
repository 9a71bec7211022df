// SPDX-License-Identifier: BSD-3-Clause
#include "comm/call_rules.h"

#include <numeric>
#include <sstream>
#include <unistd.h>

#include <c10/macros/Macros.h>
#include <fmt/format.h>

#include "base/throw_error.h"
#include "comm/memory_overlap.h"

namespace lockstep::comm {
namespace {

std::string text_of(const auto& value) {
  std::ostringstream stream;
  stream << value;
  return stream.str();
}

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{}{}", c10::toString(tensor.scalar_type()), text_of(tensor.sizes()));
}

bool is_bitwise(ReduceOp op) { return op == ReduceOp::BAND || op == ReduceOp::BOR || op == ReduceOp::BXOR; }

std::uint64_t bit_of(c10::ScalarType dtype) { return std::uint64_t{1} << static_cast<unsigned>(dtype); }

// Complex tensors travel as pairs of reals.
std::uint64_t bits_of(const std::set<c10::ScalarType>& dtypes) {
  if (dtypes.empty()) return ~std::uint64_t{0};
  std::uint64_t bits = 0;
  for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<c10::ScalarType>(i);
    if (dtypes.contains(c10::isComplexType(dtype) ? c10::toRealValueType(dtype) : dtype))
      bits |= bit_of(dtype);
  }
  return bits;
}

// "input", or "input[2]".
struct Name {
  const char* text;
  int index = -1;

  std::string str() const { return index < 0 ? text : fmt::format("{}[{}]", text, index); }
};

}  // namespace

CallRules::CallRules(int rank, int size, std::string whoami, std::string backend, BackendTraits traits,
                     std::string group)
    : rank_(rank),
      size_(size),
      whoami_(std::move(whoami)),
      group_(std::move(group)),
      backend_(std::move(backend)),
      traits_(std::move(traits)),
      carried_{} {
  for (std::size_t i = 0; i < carried_.size(); ++i) {
    const auto device = static_cast<c10::DeviceType>(i);
    const auto& part = traits_.on(device);
    carried_[i] = {.device = part.devices.empty() || part.devices.contains(device),
                   .dtypes = bits_of(part.dtypes)};
  }
}

void CallRules::refuse(CallKind kind, const std::source_location& where, std::string_view complaint) const {
  const CallRecord record{.kind = kind, .where = where};
  const auto text = record.describe();
  throw_error<ArgumentError>(ErrorDetails{.group = group_, .call = text}, "{}: {}: {}", whoami_, text,
                             complaint);
}

// The checks of one call, by kind.
class CallCheck {
 public:
  CallCheck(const CallRules& rules, const Call& call)
      : rules_(rules), call_(call), in_(call.inputs), out_(call.outputs) {}

  void run() {
    switch (call_.kind) {
      case CallKind::all_reduce:
        dense(out_[0], {"tensor"});
        return operation(out_[0]);
      case CallKind::broadcast:
        dense(out_[0], {"tensor"});
        return rank(call_.root, "src");
      case CallKind::reduce:
        dense(out_[0], {"tensor"});
        rank(call_.root, "dst");
        return operation(out_[0]);
      case CallKind::all_gather:
        contiguous(in_[0], {"input"}, Access::read);
        one_per_rank(out_, "output", Access::written);
        gathered();
        return apart();
      case CallKind::all_gather_into_tensor:
        contiguous(in_[0], {"input"}, Access::read);
        contiguous(out_[0], {"output"}, Access::written);
        whole_of(out_[0], "output", in_[0], "input");
        return apart();
      case CallKind::gather:
        contiguous(in_[0], {"input"}, Access::read);
        rooted_list(out_, "output", Access::written, in_[0], "input", "dst");
        return apart();
      case CallKind::scatter:
        contiguous(out_[0], {"output"}, Access::written);
        rooted_list(in_, "input", Access::read, out_[0], "output", "src");
        return apart();
      case CallKind::reduce_scatter:
        contiguous(out_[0], {"output"}, Access::written);
        one_per_rank(in_, "input", Access::read);
        all_same_as(in_, "input", out_[0], {"output"});
        operation(out_[0]);
        return apart();
      case CallKind::reduce_scatter_tensor:
        contiguous(out_[0], {"output"}, Access::written);
        contiguous(in_[0], {"input"}, Access::read);
        whole_of(in_[0], "input", out_[0], "output");
        operation(out_[0]);
        return apart();
      case CallKind::all_to_all:
        exchanged();
        return apart();
      case CallKind::all_to_all_single:
        contiguous(out_[0], {"output"}, Access::written);
        contiguous(in_[0], {"input"}, Access::read);
        alike(out_[0], {"output"}, in_[0], {"input"});
        splits(call_.output_splits, "output_split_sizes", out_[0], "output");
        splits(call_.input_splits, "input_split_sizes", in_[0], "input");
        return apart();
      case CallKind::send:
        dense(in_[0], {"tensor"});
        return message("dst");
      case CallKind::recv:
        dense(out_[0], {"tensor"});
        return message("src");
      case CallKind::barrier:
        return;
    }
  }

  // They may have holes: such calls copy them into one tensor and back.
  void all_copied(at::TensorList tensors, const char* name) const {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Name each{name, static_cast<int>(i)};
      transportable(tensors[i], each);
      if (has_shared_elements(tensors[i])) dense(tensors[i], each);
    }
  }

  [[noreturn]] void refuse(std::string_view complaint) const {
    rules_.refuse(call_.kind, call_.where, complaint);
  }

 private:
  [[gnu::always_inline]] void transportable(const at::Tensor& tensor, Name name) const {
    if (!is_transportable(tensor)) [[unlikely]]
      refuse_transport(tensor, name);
  }

  [[gnu::always_inline]] bool is_transportable(const at::Tensor& tensor) const {
    if (!tensor.defined() || tensor.layout() != c10::kStrided || tensor.is_conj() || tensor.is_neg())
      return false;
    const auto& carried = rules_.carried_[static_cast<std::size_t>(tensor.device().type())];
    return carried.device && (carried.dtypes & bit_of(tensor.scalar_type())) != 0;
  }

  [[noreturn]] C10_NOINLINE void refuse_transport(const at::Tensor& tensor, Name name) const {
    if (!tensor.defined()) refuse(fmt::format("{} is an undefined tensor", name.str()));
    if (tensor.layout() != c10::kStrided) {
      refuse(fmt::format("{} has layout {}; only dense (strided) tensors can be sent", name.str(),
                         text_of(tensor.layout())));
    }
    if (tensor.is_conj() || tensor.is_neg()) {
      refuse(fmt::format("{0} is a lazy conjugate or negation; pass {0}.resolve_conj().resolve_neg()",
                         name.str()));
    }
    const auto device = tensor.device().type();
    if (!rules_.carried_[static_cast<std::size_t>(device)].device) {
      const auto& advice = rules_.traits_.on(device).device_advice;
      refuse(fmt::format("{} is on {}, which backend {} does not carry{}", name.str(), tensor.device().str(),
                         rules_.backend_, advice.empty() ? "" : "; " + advice));
    }
    refuse(fmt::format("{} is of dtype {}, which backend {} does not carry", name.str(),
                       c10::toString(tensor.scalar_type()), rules_.backend_));
  }

  [[gnu::always_inline]] void whole_in_memory(const Placed& place, Name name) const {
    if (!place.is_whole()) [[unlikely]]
      refuse_storage(place, name);
  }

  [[noreturn]] C10_NOINLINE void refuse_storage(const Placed& place, Name name) const {
    refuse(fmt::format("{} needs {} bytes of its storage, which was resized to {}; give it memory first",
                       name.str(), place.offset + place.bytes, place.storage.nbytes()));
  }

  // Any dense layout without holes or overlaps.
  [[gnu::flatten]] void dense(const at::Tensor& tensor, Name name) const {
    transportable(tensor, name);
    if (!tensor.is_contiguous() && !tensor.is_non_overlapping_and_dense()) [[unlikely]]
      refuse_strides(tensor, name, "has holes or overlaps in memory");
    whole_in_memory(placed(tensor), name);
  }

  // A tensor of a call with several.
  [[gnu::flatten]] C10_NOINLINE void contiguous(const at::Tensor& tensor, Name name, Access access) {
    transportable(tensor, name);
    if (!tensor.is_contiguous()) [[unlikely]]
      refuse_strides(tensor, name, "is not contiguous");
    const auto place = placed(tensor);
    whole_in_memory(place, name);
    memory_.add(place.extent(), access);
  }

  [[noreturn]] C10_NOINLINE void refuse_strides(const at::Tensor& tensor, Name name,
                                                const char* complaint) const {
    refuse(fmt::format("{0} of shape {1} and strides {2} {3}; pass {0}.contiguous()", name.str(),
                       text_of(tensor.sizes()), text_of(tensor.strides()), complaint));
  }

  void one_per_rank(at::TensorList tensors, const char* name, Access access) {
    if (static_cast<int>(tensors.size()) != rules_.size_) {
      refuse(fmt::format("{} has {} tensors; one for each of the {} ranks is needed", name, tensors.size(),
                         rules_.size_));
    }
    for (std::size_t i = 0; i < tensors.size(); ++i)
      contiguous(tensors[i], {name, static_cast<int>(i)}, access);
  }

  [[gnu::always_inline]] void alike(const at::Tensor& tensor, Name name, const at::Tensor& model,
                                    Name model_name) const {
    if (tensor.device() == model.device() && tensor.scalar_type() == model.scalar_type()) [[likely]]
      return;
    refuse_unlike(tensor, name, model, model_name);
  }

  [[gnu::always_inline]] void same_as(const at::Tensor& tensor, Name name, const at::Tensor& model,
                                      Name model_name) const {
    alike(tensor, name, model, model_name);
    if (tensor.sizes() != model.sizes()) [[unlikely]]
      refuse_unlike(tensor, name, model, model_name);
  }

  [[noreturn]] C10_NOINLINE void refuse_unlike(const at::Tensor& tensor, Name name, const at::Tensor& model,
                                               Name model_name) const {
    if (tensor.device() != model.device()) {
      refuse(fmt::format("{} is on {} but {} is on {}; all tensors of a call must be on one device",
                         name.str(), tensor.device().str(), model_name.str(), model.device().str()));
    }
    const bool is_shape = tensor.scalar_type() == model.scalar_type();
    refuse(fmt::format("{} is {} but {} is {}; their {} must be the same", name.str(), describe(tensor),
                       model_name.str(), describe(model), is_shape ? "shapes" : "dtypes"));
  }

  [[gnu::flatten]] void all_alike(at::TensorList tensors, const char* name, const at::Tensor& model,
                                  Name model_name) const {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      alike(tensors[i], {name, static_cast<int>(i)}, model, model_name);
  }

  [[gnu::flatten]] void all_same_as(at::TensorList tensors, const char* name, const at::Tensor& model,
                                    Name model_name) const {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      same_as(tensors[i], {name, static_cast<int>(i)}, model, model_name);
  }

  // The list that only the root passes.
  void rooted_list(at::TensorList list, const char* name, Access access, const at::Tensor& model,
                   const char* model_name, const char* root_name) {
    rank(call_.root, root_name);
    if (call_.root == rules_.rank_) {
      one_per_rank(list, name, access);
      all_same_as(list, name, model, {model_name});
    } else if (!list.empty()) {
      refuse(fmt::format("{} must be empty on every rank but {} ({})", name, root_name, call_.root));
    }
  }

  // The outputs can take every rank's input.
  void gathered() const {
    if (!rules_.traits_.on(in_[0].device().type()).uneven_all_gather)
      return all_same_as(out_, "output", in_[0], {"input"});
    all_alike(out_, "output", in_[0], {"input"});
    same_as(out_[own()], {"output", rules_.rank_}, in_[0], {"input"});
  }

  void exchanged() {
    one_per_rank(out_, "output", Access::written);
    one_per_rank(in_, "input", Access::read);
    all_alike(in_, "input", in_[0], {"input", 0});
    all_alike(out_, "output", in_[0], {"input", 0});
    same_as(out_[own()], {"output", rules_.rank_}, in_[own()], {"input", rules_.rank_});
  }

  // `whole` has size() times the elements of `part`.
  void whole_of(const at::Tensor& whole, const char* whole_name, const at::Tensor& part,
                const char* part_name) const {
    alike(whole, {whole_name}, part, {part_name});
    const auto needed = part.numel() * rules_.size_;
    if (whole.numel() == needed) return;
    refuse(fmt::format("{} has {} elements; {} ranks times the {} elements of {} are {}", whole_name,
                       whole.numel(), rules_.size_, part.numel(), part_name, needed));
  }

  void splits(c10::IntArrayRef sizes, const char* name, const at::Tensor& tensor,
              const char* tensor_name) const {
    if (tensor.dim() == 0) refuse(fmt::format("{} has no dimension to split along", tensor_name));
    const auto rows = tensor.size(0);
    if (sizes.empty()) {
      if (rows % rules_.size_ == 0) return;
      refuse(fmt::format("the first dimension of {}, {}, is not divisible by {} ranks; give {}", tensor_name,
                         rows, rules_.size_, name));
    }
    if (static_cast<int>(sizes.size()) != rules_.size_) {
      refuse(fmt::format("{} has {} entries for {} ranks", name, sizes.size(), rules_.size_));
    }
    for (const auto size : sizes) {
      if (size < 0) refuse(fmt::format("{} has the negative entry {}", name, size));
    }
    const auto sum = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    if (sum == rows) return;
    refuse(fmt::format("{} sums to {} but the first dimension of {} is {}", name, sum, tensor_name, rows));
  }

  void rank(int rank, const char* name) const {
    if (rank >= 0 && rank < rules_.size_) return;
    refuse(fmt::format("{} is {}; this group has ranks 0 to {}", name, rank, rules_.size_ - 1));
  }

  void message(const char* peer_name) const {
    const bool from_any = call_.kind == CallKind::recv && call_.peer == kAnyRank;
    if (!from_any) rank(call_.peer, peer_name);
    if (call_.peer == rules_.rank_) {
      refuse(fmt::format("{} is {}, which is this rank itself", peer_name, call_.peer));
    }
    if (call_.tag < 0) refuse(fmt::format("tag is {}; it must be 0 or more", call_.tag));
  }

  void operation(const at::Tensor& tensor) const {
    const auto dtype = tensor.scalar_type();
    const bool integral = c10::isIntegralType(dtype, /*includeBool=*/true);
    if (is_bitwise(call_.op) && !integral) {
      refuse(fmt::format("{} needs integers or bool, not {}", name_of(call_.op), c10::toString(dtype)));
    }
    if (call_.op == ReduceOp::AVG && integral) {
      refuse(fmt::format("AVG needs floating point or complex, not {}; use SUM and divide",
                         c10::toString(dtype)));
    }
    if (c10::isComplexType(dtype) && call_.op != ReduceOp::SUM && call_.op != ReduceOp::AVG) {
      refuse(fmt::format("{} of complex numbers is not defined; SUM and AVG are", name_of(call_.op)));
    }
  }

  std::size_t own() const { return static_cast<std::size_t>(rules_.rank_); }

  void apart() const {
    if (!memory_.may_overlap()) [[likely]]
      return;
    const auto complaint = overlap_complaint(call_, rules_.rank_);
    if (!complaint.empty()) refuse(complaint);
  }

  const CallRules& rules_;
  const Call& call_;
  const at::TensorList& in_;
  const at::TensorList& out_;
  ArgumentMemory memory_;
};

void CallRules::check(const Call& call) const {
  if (mark_.is_in_child()) {
    throw_error<Error>(
        "{}: {}: process {} was forked off this rank and must not use its group: create a "
        "group in the child, or start the child with spawn",
        whoami_, name_of(call.kind), ::getpid());
  }
  CallCheck(*this, call).run();
}

void CallRules::check_coalesced(
    CallKind kind, at::TensorList outputs, at::TensorList inputs,
    c10::function_ref<bool(std::size_t output, std::size_t input)> is_allowed) const {
  const Call call{.kind = kind};
  const CallCheck check(*this, call);
  check.all_copied(outputs, "outputs");
  check.all_copied(inputs, "inputs");
  auto overlap = find_overlap(outputs, inputs, is_allowed);
  if (!overlap) overlap = find_overlap_with_holes(outputs, inputs, is_allowed);
  if (!overlap) return;
  check.refuse(fmt::format("outputs[{}] and {}[{}] share memory; each output needs memory of its own",
                           overlap->output, overlap->is_input ? "inputs" : "outputs", overlap->other));
}

}  // namespace lockstep::comm
