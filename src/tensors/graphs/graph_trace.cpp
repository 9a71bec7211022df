// SPDX-License-Identifier: BSD-3-Clause
#include "graphs/graph_trace.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "graphs/revocable_graph.h"

namespace lockstep::graphs {
namespace {

// A callback of LibTorch is a detached_outputs function.
std::unique_ptr<at::ObserverContext> observe(const at::RecordFunction& function) {
  auto* context = graph_context();
  if (context == nullptr) return nullptr;
  const MutexLock lock(context->mutex);
  if (context->trace != nullptr) context->trace->add(function);
  return nullptr;
}

// Waits for threads that add an operator.
void set_trace(OperatorTrace* trace) {
  auto& context = *graph_context();
  const MutexLock lock(context.mutex);
  context.trace = trace;
}

// Operators that copy a result to the host.
bool synchronizes_device(std::string_view name) {
  static constexpr std::array<std::string_view, 9> kNames{"aten::_local_scalar_dense",
                                                          "aten::item",
                                                          "aten::is_nonzero",
                                                          "aten::equal",
                                                          "aten::nonzero",
                                                          "aten::masked_select",
                                                          "aten::_unique2",
                                                          "aten::unique_dim",
                                                          "aten::unique_consecutive"};
  return std::ranges::find(kNames, name) != kNames.end();
}

// The 2 of `tensor * 2`, which LibTorch makes a CPU tensor.
std::string number_text(const at::Tensor& number) {
  if (number.is_complex()) {
    const auto value = number.item().toComplexDouble();
    return fmt::format("{}+{}i", value.real(), value.imag());
  }
  return number.is_floating_point() ? fmt::format("{}", number.item().toDouble())
                                    : fmt::format("{}", number.item().toLong());
}

}  // namespace

void OperatorTrace::set_error(std::string text) {
  if (error_.empty()) error_ = std::move(text);
}

void OperatorTrace::add_tensor(std::string& text, const at::Tensor& tensor, const char* name) {
  if (!tensor.defined()) {
    text += "none ";
    return;
  }
  const bool number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  if (number && tensor.is_cpu()) {
    const at::DisableRecordFunctionGuard unobserved;
    text += number_text(tensor) + " ";
    return;
  }
  if (tensor.device().type() != device_.type()) {
    set_error(
        fmt::format("{} takes a tensor on {}, whose values a graph would freeze; move it to {} before the "
                    "step and pass it as an input",
                    name, tensor.device().str(), device_.str()));
  }
  if (tensor.layout() != at::kStrided) {
    set_error(fmt::format("{} takes a sparse tensor, whose number of entries may change", name));
    return;
  }
  text += fmt::format("{}[{}] ", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ","));
}

void OperatorTrace::add_argument(std::string& text, const c10::IValue& value, const char* name) {
  if (value.isTensor()) {
    add_tensor(text, value.toTensor(), name);
  } else if (value.isTensorList()) {
    for (const auto& tensor : value.toTensorVector()) add_tensor(text, tensor, name);
  } else if (value.isList()) {
    for (const auto& item : value.toListRef()) add_argument(text, item, name);
  } else if (value.isDouble()) {
    text += fmt::format("{} ", value.toDouble());
  } else if (value.isInt()) {
    text += fmt::format("{} ", value.toInt());
  } else if (value.isBool()) {
    text += value.toBool() ? "true " : "false ";
  } else if (value.isString()) {
    text += value.toStringRef() + " ";
  } else if (value.isComplexDouble()) {
    text += fmt::format("{}+{}i ", value.toComplexDouble().real(), value.toComplexDouble().imag());
  }
}

std::string OperatorTrace::arguments_of(const at::RecordFunction& function) {
  std::string text;
  for (const auto& value : function.inputs()) add_argument(text, value, function.name());
  if (!text.empty()) text.pop_back();
  return text;
}

void OperatorTrace::add(const at::RecordFunction& function) {
  const MutexLock lock(mutex_);
  if (synchronizes_device(function.name())) {
    set_error(
        fmt::format("{} synchronizes with the device; return the tensor from the step and read it afterwards",
                    function.name()));
  }
  const auto arguments = arguments_of(function);
  calls_.push_back(fmt::format("{}({})", function.name(), arguments));
}

std::string OperatorTrace::difference(const OperatorTrace& later) const {
  const MutexLock lock(mutex_);
  const MutexLock lock_of_later(later.mutex_);
  const auto [before, after] = std::ranges::mismatch(calls_, later.calls_);
  if (before == calls_.end() && after == later.calls_.end()) return "";
  const auto text = [](const auto& at, const auto& end) { return at == end ? "nothing" : *at; };
  return fmt::format("operator {}: first {}, then {}", before - calls_.begin() + 1,
                     text(before, calls_.end()), text(after, later.calls_.end()));
}

Tracing::Tracing(OperatorTrace& trace) {
  set_trace(&trace);
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(observe).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

Tracing::~Tracing() {
  at::removeCallback(handle_);
  set_trace(nullptr);
}

}  // namespace lockstep::graphs
