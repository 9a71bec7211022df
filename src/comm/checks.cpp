// SPDX-License-Identifier: BSD-3-Clause
#include "comm/checks.h"

#include <numeric>
#include <sstream>

#include <fmt/format.h>

#include <lockstep/base/error.h>

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

}  // namespace

void Checks::refuse(std::string_view complaint) const {
  const CallRecord record{.kind = kind_, .where = where_};
  throw ArgumentError(fmt::format("{}: {}: {}", group_.whoami(), record.describe(), complaint));
}

void Checks::transportable(const at::Tensor& tensor, std::string_view name) const {
  if (!tensor.defined()) refuse(fmt::format("{} is an undefined tensor", name));
  if (tensor.layout() != c10::Layout::Strided) {
    refuse(fmt::format("{} has layout {}; only dense (strided) tensors can be sent", name,
                       text_of(tensor.layout())));
  }
  if (tensor.is_conj() || tensor.is_neg()) {
    refuse(fmt::format("{0} is a lazy conjugate or negation; pass {0}.resolve_conj().resolve_neg()", name));
  }
  const auto& traits = group_.info().traits.on(tensor.device().type());
  if (!traits.devices.empty() && !traits.devices.contains(tensor.device().type())) {
    refuse(fmt::format("{} is on {}, which backend {} does not carry{}", name, tensor.device().str(),
                       group_.backend_name(),
                       traits.device_advice.empty() ? "" : "; " + traits.device_advice));
  }
  const auto dtype = c10::toRealValueType(tensor.scalar_type());
  if (!traits.dtypes.empty() && !traits.dtypes.contains(dtype)) {
    refuse(fmt::format("{} is of dtype {}, which backend {} does not carry", name,
                       c10::toString(tensor.scalar_type()), group_.backend_name()));
  }
}

void Checks::dense(const at::Tensor& tensor, std::string_view name) const {
  transportable(tensor, name);
  if (!tensor.is_non_overlapping_and_dense()) {
    refuse(fmt::format("{} of shape {} and strides {} has holes or overlaps in memory; pass {}.contiguous()",
                       name, text_of(tensor.sizes()), text_of(tensor.strides()), name));
  }
}

void Checks::contiguous(const at::Tensor& tensor, std::string_view name) const {
  transportable(tensor, name);
  if (!tensor.is_contiguous()) {
    refuse(fmt::format("{} of shape {} and strides {} is not contiguous; pass {}.contiguous()", name,
                       text_of(tensor.sizes()), text_of(tensor.strides()), name));
  }
}

void Checks::one_per_rank(const std::vector<at::Tensor>& tensors, std::string_view name) const {
  if (static_cast<int>(tensors.size()) != group_.size()) {
    refuse(fmt::format("{} has {} tensors; one for each of the {} ranks is needed", name, tensors.size(),
                       group_.size()));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) contiguous(tensors[i], fmt::format("{}[{}]", name, i));
}

void Checks::empty_off_root(const std::vector<at::Tensor>& tensors, std::string_view name,
                            std::string_view root_name, int root) const {
  if (!tensors.empty()) {
    refuse(fmt::format("{} must be empty on every rank but {} ({})", name, root_name, root));
  }
}

void Checks::object_count(std::size_t count, std::size_t needed, int src) const {
  if (count == needed) return;
  if (needed == 0) refuse(fmt::format("objects must be empty on every rank but src ({})", src));
  refuse(fmt::format("objects has {} entries; one for each of the {} ranks is needed", count, needed));
}

void Checks::same_dtype(const at::Tensor& tensor, std::string_view name, const at::Tensor& model,
                        std::string_view model_name) const {
  if (tensor.scalar_type() != model.scalar_type()) {
    refuse(fmt::format("{} is {} but {} is {}; their dtypes must be the same", name, describe(tensor),
                       model_name, describe(model)));
  }
}

void Checks::same_as(const at::Tensor& tensor, std::string_view name, const at::Tensor& model,
                     std::string_view model_name) const {
  same_dtype(tensor, name, model, model_name);
  if (tensor.sizes() != model.sizes()) {
    refuse(fmt::format("{} is {} but {} is {}; their shapes must be the same", name, describe(tensor),
                       model_name, describe(model)));
  }
}

void Checks::gathered(const std::vector<at::Tensor>& output, const at::Tensor& input) const {
  if (!group_.info().traits.on(input.device().type()).uneven_all_gather) {
    for (const auto& tensor : output) same_as(tensor, "an output", input, "input");
    return;
  }
  for (const auto& tensor : output) same_dtype(tensor, "an output", input, "input");
  same_as(output[static_cast<std::size_t>(group_.rank())], "output[rank]", input, "input");
}

void Checks::whole_of(const at::Tensor& whole, std::string_view whole_name, const at::Tensor& part,
                      std::string_view part_name) const {
  same_dtype(whole, whole_name, part, part_name);
  if (whole.numel() != part.numel() * group_.size()) {
    refuse(fmt::format("{} has {} elements; {} ranks times the {} elements of {} are {}", whole_name,
                       whole.numel(), group_.size(), part.numel(), part_name, part.numel() * group_.size()));
  }
}

void Checks::splits(const std::vector<std::int64_t>& sizes, std::string_view name, const at::Tensor& tensor,
                    std::string_view tensor_name) const {
  if (tensor.dim() == 0) refuse(fmt::format("{} has no dimension to cut along", tensor_name));
  const auto rows = tensor.size(0);
  if (sizes.empty()) {
    if (rows % group_.size() != 0) {
      refuse(fmt::format("the first dimension of {}, {}, is not divisible by {} ranks; give {}", tensor_name,
                         rows, group_.size(), name));
    }
    return;
  }
  if (static_cast<int>(sizes.size()) != group_.size()) {
    refuse(fmt::format("{} has {} entries for {} ranks", name, sizes.size(), group_.size()));
  }
  for (const auto size : sizes) {
    if (size < 0) refuse(fmt::format("{} has the negative entry {}", name, size));
  }
  const auto sum = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  if (sum != rows) {
    refuse(fmt::format("{} sums to {} but the first dimension of {} is {}", name, sum, tensor_name, rows));
  }
}

void Checks::one_object_per_rank(std::size_t count) const {
  if (static_cast<int>(count) == group_.size()) return;
  refuse(fmt::format("src gave {} objects for {} ranks", count, group_.size()));
}

void Checks::rank(int rank, std::string_view name) const {
  if (rank < 0 || rank >= group_.size()) {
    refuse(fmt::format("{} is {}; this group has ranks 0 to {}", name, rank, group_.size() - 1));
  }
}

void Checks::peer(int rank, std::string_view name) const {
  this->rank(rank, name);
  if (rank == group_.rank()) refuse(fmt::format("{} is {}, which is this rank itself", name, rank));
}

void Checks::tag(int tag) const {
  if (tag < 0) refuse(fmt::format("tag is {}; it must be 0 or more", tag));
}

void Checks::operation(ReduceOp op, const at::Tensor& tensor) const {
  const auto dtype = tensor.scalar_type();
  const bool integral = c10::isIntegralType(dtype, /*includeBool=*/true);
  if (is_bitwise(op) && !integral) {
    refuse(fmt::format("{} needs integers or bool, not {}", name_of(op), c10::toString(dtype)));
  }
  if (op == ReduceOp::AVG && integral) {
    refuse(
        fmt::format("AVG needs floating point or complex, not {}; use SUM and divide", c10::toString(dtype)));
  }
  if (c10::isComplexType(dtype) && op != ReduceOp::SUM && op != ReduceOp::AVG) {
    refuse(fmt::format("{} of complex numbers is not defined here; SUM and AVG are", name_of(op)));
  }
}

}  // namespace lockstep::comm
