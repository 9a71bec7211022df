// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstring>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <lockstep/comm/process_group.h>

#include "comm/group_state.h"

namespace lockstep {

using comm::state_of;

namespace {

// Strings and bytes of any length are carried as a length and a uint8 tensor.
c10::Device object_device(const comm::GroupState& group) {
  // A backend for one device type (NCCL) needs the bytes on that device.
  const auto& devices = group.info().traits.devices;
  const bool host = devices.empty() || devices.contains(c10::DeviceType::CPU);
  return host ? c10::DeviceType::CPU : *devices.begin();
}

c10::TensorOptions on_device(const comm::GroupState& group, c10::ScalarType dtype) {
  comm::refuse_with_python(group, "objects", "Python pickles them: send a tensor");
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

using Where = ProcessGroup::Where;
using Strings = std::vector<std::string>;

at::Tensor lengths_of(const Strings& objects, int size, const c10::TensorOptions& options) {
  auto lengths = at::zeros({size}, at::kLong);
  for (std::size_t i = 0; i < objects.size(); ++i)
    lengths.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(objects[i].size());
  return lengths.to(options.device());
}

// Within the group's timeout if there is no limit.
using Limit = std::optional<Timeout>;

void wait_within(const Limit& limit, Work work) { limit ? work.wait(*limit) : work.wait(); }

// The second half of each call, when all ranks know the lengths.
Strings all_gathered(const ProcessGroup& group, const std::string& object, const at::Tensor& lengths,
                     Where where, const Limit& limit = {}) {
  const auto each = values_of(lengths);
  const auto longest = *std::ranges::max_element(each);
  if (longest == 0) return Strings(each.size());
  const auto bytes = on_device(state_of(group), at::kByte);
  const auto parts = one_per_rank(group.size(), longest, bytes);
  wait_within(limit, group.all_gather_async(parts, to_tensor(object, longest, bytes), where));
  return to_strings(parts, each);
}

std::string broadcasted(const ProcessGroup& group, const std::string& object, const at::Tensor& length,
                        int src, Where where, const Limit& limit = {}) {
  const auto count = values_of(length).front();
  if (count == 0) return {};
  const auto bytes = on_device(state_of(group), at::kByte);
  // Where calls are simulated, each rank gets its own object.
  const bool has_length = static_cast<std::int64_t>(object.size()) == count;
  auto tensor = has_length ? to_tensor(object, count, bytes) : at::empty({count}, bytes);
  wait_within(limit, group.broadcast_async(tensor, src, where));
  return to_string(tensor, count);
}

Strings gathered(const ProcessGroup& group, const std::string& object, const at::Tensor& lengths, int dst,
                 Where where, const Limit& limit = {}) {
  const auto each = values_of(lengths);
  const auto longest = *std::ranges::max_element(each);
  const bool root = group.rank() == dst;
  if (longest == 0) return Strings(root ? each.size() : 0);
  const auto bytes = on_device(state_of(group), at::kByte);
  const auto parts = root ? one_per_rank(group.size(), longest, bytes) : std::vector<at::Tensor>{};
  wait_within(limit, group.gather_async(to_tensor(object, longest, bytes), parts, dst, where));
  return to_strings(parts, each);
}

std::string scattered(const ProcessGroup& group, const Strings& objects, const at::Tensor& lengths, int src,
                      Where where, const Limit& limit = {}) {
  const auto each = values_of(lengths);
  const auto longest = *std::ranges::max_element(each);
  if (longest == 0) return {};
  const auto bytes = on_device(state_of(group), at::kByte);
  std::vector<at::Tensor> parts;
  for (const auto& object : objects) parts.push_back(to_tensor(object, longest, bytes));
  auto own = at::empty({longest}, bytes);
  wait_within(limit, group.scatter_async(own, parts, src, where));
  return to_string(own, each[static_cast<std::size_t>(group.rank())]);
}

}  // namespace

Strings ProcessGroup::all_gather_object(const std::string& object, Where where) const {
  const auto words = on_device(state_of(*this), at::kLong);
  const auto lengths = at::empty({size()}, words);
  all_gather_into_tensor(lengths, length_of(object, words), where);
  return all_gathered(*this, object, lengths, where);
}

ObjectWork<Strings> ProcessGroup::all_gather_object_async(const std::string& object, Where where) const {
  const auto words = on_device(state_of(*this), at::kLong);
  const auto lengths = at::empty({size()}, words);
  return {
      all_gather_into_tensor_async(lengths, length_of(object, words), where),
      [=, group = *this](const Limit& limit) { return all_gathered(group, object, lengths, where, limit); }};
}

std::string ProcessGroup::broadcast_object(const std::string& object, int src, Where where) const {
  const auto length = length_of(object, on_device(state_of(*this), at::kLong));
  broadcast(length, src, where);
  return broadcasted(*this, object, length, src, where);
}

ObjectWork<std::string> ProcessGroup::broadcast_object_async(const std::string& object, int src,
                                                             Where where) const {
  const auto length = length_of(object, on_device(state_of(*this), at::kLong));
  return {broadcast_async(length, src, where), [=, group = *this](const Limit& limit) {
            return broadcasted(group, object, length, src, where, limit);
          }};
}

Strings ProcessGroup::gather_object(const std::string& object, int dst, Where where) const {
  check_root(state_of(*this), CallKind::gather, dst, "dst", where);
  const auto words = on_device(state_of(*this), at::kLong);
  const auto lengths = at::empty({size()}, words);
  all_gather_into_tensor(lengths, length_of(object, words), where);
  return gathered(*this, object, lengths, dst, where);
}

ObjectWork<Strings> ProcessGroup::gather_object_async(const std::string& object, int dst, Where where) const {
  check_root(state_of(*this), CallKind::gather, dst, "dst", where);
  const auto words = on_device(state_of(*this), at::kLong);
  const auto lengths = at::empty({size()}, words);
  return {
      all_gather_into_tensor_async(lengths, length_of(object, words), where),
      [=, group = *this](const Limit& limit) { return gathered(group, object, lengths, dst, where, limit); }};
}

std::string ProcessGroup::scatter_object(const Strings& objects, int src, Where where) const {
  check_root(state_of(*this), CallKind::scatter, src, "src", where);
  check_count(state_of(*this), objects.size(), src, where);
  const auto lengths = lengths_of(objects, size(), on_device(state_of(*this), at::kLong));
  broadcast(lengths, src, where);
  return scattered(*this, objects, lengths, src, where);
}

ObjectWork<std::string> ProcessGroup::scatter_object_async(const Strings& objects, int src,
                                                           Where where) const {
  check_root(state_of(*this), CallKind::scatter, src, "src", where);
  check_count(state_of(*this), objects.size(), src, where);
  const auto lengths = lengths_of(objects, size(), on_device(state_of(*this), at::kLong));
  return {broadcast_async(lengths, src, where), [=, group = *this](const Limit& limit) {
            return scattered(group, objects, lengths, src, where, limit);
          }};
}

c10::Device comm::device_for_objects(const ProcessGroup& group) { return object_device(state_of(group)); }

c10::Device comm::device_that_carries(const ProcessGroup& group, c10::Device device) {
  const auto& devices = state_of(group).info().traits.devices;
  return devices.empty() || devices.contains(device.type()) ? device : device_for_objects(group);
}

}  // namespace lockstep
