// SPDX-License-Identifier: BSD-3-Clause
// Strings and bytes of any length, carried as a length and a uint8 tensor.
#include <algorithm>
#include <cstring>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/process_group.h>

#include "comm/group_state.h"

namespace lockstep {
namespace {

c10::Device object_device(const comm::GroupState& group) {
  // A backend for one device type (NCCL) needs the bytes on that device.
  const auto& devices = group.info().traits.devices;
  const bool host = devices.empty() || devices.contains(c10::DeviceType::CPU);
  return host ? c10::DeviceType::CPU : *devices.begin();
}

c10::TensorOptions on_device(const comm::GroupState& group, c10::ScalarType dtype) {
  return c10::TensorOptions().dtype(dtype).device(object_device(group));
}

at::Tensor to_tensor(const std::string& bytes, std::int64_t capacity, const c10::TensorOptions& options) {
  auto tensor = at::zeros({capacity}, options.device(at::kCPU));
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor.to(options.device());
}

std::string to_string(const at::Tensor& tensor, std::int64_t length) {
  const auto host = tensor.to(at::kCPU);
  return {static_cast<const char*>(host.data_ptr()), static_cast<std::size_t>(length)};
}

at::Tensor length_of(const std::string& object, const c10::TensorOptions& options) {
  return at::full({1}, static_cast<std::int64_t>(object.size()), options);
}

std::vector<at::Tensor> one_per_rank(int size, std::int64_t length, const c10::TensorOptions& options) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < size; ++i) tensors.push_back(at::empty({length}, options));
  return tensors;
}

std::vector<std::int64_t> values_of(const at::Tensor& lengths) {
  const auto host = lengths.to(at::kCPU);
  return {host.data_ptr<std::int64_t>(), host.data_ptr<std::int64_t>() + host.numel()};
}

std::vector<std::string> to_strings(const std::vector<at::Tensor>& tensors,
                                    const std::vector<std::int64_t>& lengths) {
  std::vector<std::string> objects;
  for (std::size_t i = 0; i < tensors.size(); ++i) objects.push_back(to_string(tensors[i], lengths[i]));
  return objects;
}

void check_root(const comm::GroupState& group, CallKind kind, int root, const char* name,
                const std::source_location& where) {
  if (root >= 0 && root < group.size()) return;
  group.rules().refuse(kind, where,
                       fmt::format("{} is {}; this group has ranks 0 to {}", name, root, group.size() - 1));
}

// scatter_object: one object per rank on src, none on other ranks.
void check_count(const comm::GroupState& group, std::size_t count, int src,
                 const std::source_location& where) {
  const bool is_root = group.rank() == src;
  if (count == (is_root ? static_cast<std::size_t>(group.size()) : 0)) return;
  group.rules().refuse(CallKind::scatter, where,
                       is_root ? fmt::format("objects has {} entries; one for each of the {} ranks is needed",
                                             count, group.size())
                               : fmt::format("objects must be empty on every rank but src ({})", src));
}

}  // namespace

std::vector<std::string> ProcessGroup::all_gather_object(const std::string& object, Where where) const {
  const auto words = on_device(*state_, at::kLong);
  const auto bytes = on_device(*state_, at::kByte);
  auto lengths = at::empty({size()}, words);
  all_gather_into_tensor(lengths, length_of(object, words), where);
  const auto each = values_of(lengths);
  const auto longest = *std::ranges::max_element(each);
  if (longest == 0) return std::vector<std::string>(each.size());
  const auto parts = one_per_rank(size(), longest, bytes);
  all_gather(parts, to_tensor(object, longest, bytes), where);
  return to_strings(parts, each);
}

std::string ProcessGroup::broadcast_object(const std::string& object, int src, Where where) const {
  const auto bytes = on_device(*state_, at::kByte);
  auto length = length_of(object, on_device(*state_, at::kLong));
  broadcast(length, src, where);
  const auto count = values_of(length).front();
  if (count == 0) return {};
  auto tensor = rank() == src ? to_tensor(object, count, bytes) : at::empty({count}, bytes);
  broadcast(tensor, src, where);
  return to_string(tensor, count);
}

std::vector<std::string> ProcessGroup::gather_object(const std::string& object, int dst, Where where) const {
  check_root(*state_, CallKind::gather, dst, "dst", where);
  const auto words = on_device(*state_, at::kLong);
  const auto bytes = on_device(*state_, at::kByte);
  auto lengths = at::empty({size()}, words);
  all_gather_into_tensor(lengths, length_of(object, words), where);
  const auto each = values_of(lengths);
  const auto longest = *std::ranges::max_element(each);
  const bool root = rank() == dst;
  if (longest == 0) return std::vector<std::string>(root ? each.size() : 0);
  const auto parts = root ? one_per_rank(size(), longest, bytes) : std::vector<at::Tensor>{};
  gather(to_tensor(object, longest, bytes), parts, dst, where);
  return to_strings(parts, each);
}

std::string ProcessGroup::scatter_object(const std::vector<std::string>& objects, int src,
                                         Where where) const {
  check_root(*state_, CallKind::scatter, src, "src", where);
  const bool root = rank() == src;
  check_count(*state_, objects.size(), src, where);
  const auto bytes = on_device(*state_, at::kByte);
  auto lengths = at::zeros({size()}, at::kLong);
  for (std::size_t i = 0; i < objects.size(); ++i) {
    lengths.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(objects[i].size());
  }
  lengths = lengths.to(bytes.device());
  broadcast(lengths, src, where);
  const auto each = values_of(lengths);
  const auto longest = *std::ranges::max_element(each);
  if (longest == 0) return {};
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < (root ? objects.size() : 0); ++i)
    parts.push_back(to_tensor(objects[i], longest, bytes));
  auto own = at::empty({longest}, bytes);
  scatter(own, parts, src, where);
  return to_string(own, each[static_cast<std::size_t>(rank())]);
}

c10::Device comm::device_for_objects(const ProcessGroup& group) { return object_device(state_of(group)); }

}  // namespace lockstep
