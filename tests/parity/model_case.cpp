// SPDX-License-Identifier: BSD-3-Clause
#include "parity/model_case.h"

#include <set>

#include <gtest/gtest.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/serialize/torch_file.h>

#include "support/python.h"

namespace lockstep::testing {
namespace {

Subject fresh(const ModelCase& test_case) {
  torch::manual_seed(0);
  return test_case.make();
}

std::string file_of(const std::string& folder, const std::string& name) { return folder + "/" + name; }

void expect_close(const at::Tensor& own, const Value& value, double tolerance, const std::string& what) {
  const auto& python = value.as_tensor();
  ASSERT_EQ(own.sizes(), python.sizes()) << what;
  if (tolerance == 0) {
    EXPECT_TRUE(torch::equal(own, python)) << what << " differs by " << (own - python).abs().max();
    return;
  }
  const auto difference = (own - python).abs().max().item<double>();
  EXPECT_LE(difference, tolerance * std::max(1e-3, python.abs().max().item<double>())) << what;
}

// Forward and backward in one mode.
void expect_step(const Subject& subject, const Dict& python, bool train, double tolerance) {
  const std::string mode = train ? "train" : "eval";
  const auto& expected = python.at(mode).as_dict();
  subject.module->train(train);
  subject.module->zero_grad();
  torch::manual_seed(2);
  const auto outputs = subject.forward(python.at("input").as_tensor());
  expect_close(outputs[0].detach(), expected.at("output"), tolerance, mode + " output");
  at::Tensor loss = torch::zeros({});
  for (const auto& output : outputs) loss = loss + output.square().mean();
  loss.backward();
  const auto parameters = subject.module->named_parameters();
  for (const auto& [name, gradient] : expected.at("gradients").as_dict()) {
    const auto& own = parameters[name.as_string()].grad();
    ASSERT_TRUE(own.defined()) << name.as_string();
    expect_close(own, gradient, tolerance, mode + " gradient of " + name.as_string());
  }
}

// A network of its own with the same names, values and ties.
void expect_cloned(const torch::nn::Module& module) {
  const auto copy = module.clone();
  const auto own = state_dict(module);
  const auto copied = state_dict(*copy);
  EXPECT_TRUE(equal(copied, own)) << "clone()";
  const auto places = [](const Dict& state) {
    std::set<const void*> found;
    for (const auto& [_, value] : state) found.insert(value.as_tensor().data_ptr());
    return found;
  };
  const auto before = places(own);
  const auto after = places(copied);
  EXPECT_EQ(after.size(), before.size()) << "clone() does not share what the original shares";
  for (const auto* place : after) EXPECT_FALSE(before.contains(place)) << "clone() shares data";
}

}  // namespace

void exchange_with_python(const std::string& script, const std::string& folder,
                          const std::vector<ModelCase>& cases, const std::vector<std::string>& others) {
  std::vector<std::string> args{folder};
  for (const auto& test_case : cases) {
    save(state_dict(*fresh(test_case).module), file_of(folder, test_case.name + ".cpp.pt"), {.sync = false});
    args.push_back(test_case.name);
  }
  args.insert(args.end(), others.begin(), others.end());
  run_python(script, {.args = args});
}

void expect_pythons(const ModelCase& test_case, const std::string& folder) {
  SCOPED_TRACE(test_case.name);
  const auto python = load(file_of(folder, test_case.name + ".pt"));
  const auto subject = fresh(test_case);
  const auto own = state_dict(*subject.module);
  auto init = python["init"].as_dict();
  ASSERT_EQ(own.size(), init.size());
  auto expected = init.begin();
  for (const auto& [name, value] : own) {
    EXPECT_EQ(name.as_string(), expected->key.as_string());
    EXPECT_TRUE(torch::equal(value.as_tensor(), expected->value.as_tensor())) << name.as_string();
    ++expected;
  }

  load_pretrained(*subject.module, file_of(folder, test_case.name + ".weights.pt"));
  for (const bool train : {true, false}) expect_step(subject, python.as_dict(), train, test_case.tolerance);
  const auto buffers = subject.module->named_buffers();
  for (const auto& [name, buffer] : python["buffers"].as_dict())
    expect_close(buffers[name.as_string()], buffer, test_case.tolerance, name.as_string());
  expect_cloned(*subject.module);
}

}  // namespace lockstep::testing
