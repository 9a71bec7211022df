// SPDX-License-Identifier: BSD-3-Clause
#include <optional>

#include "base/throw_error.h"
#include "training/summary.h"

namespace lockstep::training {
namespace {

// Fields of tensorboard.hparams.HParamsPluginData.
constexpr int kExperiment = 2;
constexpr int kStartInfo = 3;
constexpr int kEndInfo = 4;

// Of google.protobuf.Value, with the tensorboard.hparams.DataType that belongs to each.
constexpr int kNumber = 2;
constexpr int kString = 3;
constexpr int kTypeString = 1;
constexpr int kTypeNumber = 3;

std::optional<double> as_number(const Value& value) {
  if (const auto* tensor = value.get_if<at::Tensor>()) {
    if (tensor->numel() == 1 && !tensor->is_complex()) return tensor->item<double>();
    return std::nullopt;
  }
  if (value.is<bool>() || value.is<std::int64_t>() || value.is<double>()) return value.as_double();
  return std::nullopt;
}

// A google.protobuf.Value.
ProtoMessage encoded(const std::string& name, const Value& value) {
  if (const auto* text = value.get_if<std::string>()) return ProtoMessage().text(kString, *text);
  if (const auto number = as_number(value)) return ProtoMessage().float64(kNumber, *number);
  throw_error<ArgumentError>(
      "add_hparams: {} should be a bool, an int, a float, a str, a tensor of one element or None, not {}",
      name, repr(value, 100));
}

// A google.protobuf.ListValue.
ProtoMessage encoded_domain(const std::string& name, const Value& value, const Value& domain) {
  const auto* list = domain.get_if<List>();
  if (list == nullptr) {
    throw_error<ArgumentError>("add_hparams: hparam_domain_discrete has no list for {}, but {}", name,
                               repr(domain, 100));
  }
  ProtoMessage result;
  for (const auto& item : list->items) {
    if (item.type_name() != value.type_name()) {
      throw_error<ArgumentError>("add_hparams: hparam_domain_discrete has {} for {}, which is of type {}",
                                 repr(item, 100), name, value.type_name());
    }
    result.message(1, encoded(name, item));
  }
  return result;
}

const std::string& name_of(const Value& key) {
  if (const auto* name = key.get_if<std::string>()) return *name;
  throw_error<ArgumentError>("add_hparams: names should be of type str, not {}", repr(key, 100));
}

ProtoMessage hparam_info(const std::string& name, const Value& value, const Dict& domains) {
  ProtoMessage info;
  info.text(1, name).integer(4, value.is<std::string>() ? kTypeString : kTypeNumber);
  if (const auto* domain = domains.find(name)) info.message(5, encoded_domain(name, value, *domain));
  return info;
}

ProtoMessage plugin_data(const std::string& tag, int field, const ProtoMessage& data) {
  return plugin_summary("_hparams_/" + tag, "hparams", ProtoMessage().message(field, data));
}

}  // namespace

HparamsSummaries hparams_summaries(const Dict& hparams, const Scalars& metrics, const Dict& domains) {
  for (const auto& [key, domain] : domains) {
    if (!hparams.contains(key)) {
      throw_error<ArgumentError>("add_hparams: hparam_domain_discrete has {}, which hparam_dict lacks",
                                 name_of(key));
    }
  }
  ProtoMessage experiment;
  ProtoMessage start;
  for (const auto& [key, value] : hparams) {
    if (value.is<None>()) continue;
    const auto& name = name_of(key);
    start.message(1, ProtoMessage().text(1, name).message(2, encoded(name, value)));
    experiment.message(4, hparam_info(name, value, domains));
  }
  for (const auto& [name, value] : metrics) {
    experiment.message(5, ProtoMessage().message(1, ProtoMessage().text(2, name)));
  }
  constexpr int success = 1;
  return {.experiment = plugin_data("experiment", kExperiment, experiment),
          .session_start = plugin_data("session_start_info", kStartInfo, start),
          .session_end = plugin_data("session_end_info", kEndInfo, ProtoMessage().integer(1, success))};
}

}  // namespace lockstep::training
