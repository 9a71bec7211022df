// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/device/pytree.h>
#include <lockstep/distributed.h>

#include "unit/ddp/fake_group.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

template <typename T>
std::vector<double> numbers_in(T value) {
  std::vector<double> numbers;
  visit_tensors(value, [&](at::Tensor& tensor) { numbers.push_back(tensor.item().toDouble()); });
  return numbers;
}

at::Tensor number(double value) { return torch::tensor(value); }

struct State {
  at::Tensor hidden;
  std::optional<at::Tensor> cell;
  int steps = 0;
  template <typename F>
  void visit_tensors(F&& f) {
    f(hidden);
    lockstep::visit_tensors(cell, f);
  }
};

TEST(PyTree, VisitsNestedContainers) {
  using Tensors = std::vector<at::Tensor>;
  EXPECT_EQ(numbers_in(number(1)), std::vector<double>{1});
  EXPECT_EQ(numbers_in(at::Tensor()), std::vector<double>{});
  EXPECT_EQ(numbers_in(std::pair(number(1), Tensors{number(2), number(3)})), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(numbers_in(std::tuple(3, std::string("text"), std::optional(number(2)), true)),
            std::vector<double>{2});
  EXPECT_EQ(numbers_in(std::map<std::string, std::vector<Tensors>>{{"a", {{number(1)}, {number(2)}}}}),
            (std::vector<double>{1, 2}));
  EXPECT_EQ(numbers_in(std::array<State, 2>{State{number(1), number(2)}, State{number(3), std::nullopt}}),
            (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(numbers_in(std::variant<int, at::Tensor>(number(4))), std::vector<double>{4});
  EXPECT_EQ(numbers_in(std::make_shared<State>(State{number(1), number(2)})), (std::vector<double>{1, 2}));
}

TEST(PyTree, VisitsAndReplacesTensorsOfIValues) {
  c10::IValue value(std::tuple(number(1), std::vector<at::Tensor>{number(2), number(3)}));
  visit_tensors(value, [](at::Tensor& tensor) { tensor = tensor * 10; });
  EXPECT_EQ(numbers_in(value), (std::vector<double>{10, 20, 30}));
}

struct Opaque {
  at::Tensor inside;
};

template <typename Output>
struct Returns : torch::nn::Module {
  Output forward(const at::Tensor& x) {
    if constexpr (std::is_same_v<Output, State>) {
      return {used->forward(x), unused->forward(x)};
    } else {
      return {used->forward(x)};
    }
  }
  torch::nn::Linear used{register_module("used", torch::nn::Linear(2, 2))};
  torch::nn::Linear unused{register_module("unused", torch::nn::Linear(2, 2))};
};

TEST(PyTree, AUserStructShowsWhichOutputsTheLossUses) {
  const testing::FakeGroup fake;
  DistributedDataParallel ddp(std::make_shared<Returns<State>>(),
                              {.process_group = fake.group, .find_unused_parameters = true});
  for (int step = 0; step < 2; ++step) ddp->forward(torch::ones({1, 2})).hidden.sum().backward();
  EXPECT_TRUE(ddp->module()->used->weight.grad().defined());
}

TEST(PyTree, ATypeWithoutVisitorIsRejectedByName) {
  const testing::FakeGroup fake;
  DistributedDataParallel ddp(std::make_shared<Returns<Opaque>>(),
                              {.process_group = fake.group, .find_unused_parameters = true});
  EXPECT_THAT(
      [&] {
        ddp->forward(torch::ones({1, 2}));
      },
      ThrowsMessage<ArgumentError>(AllOf(HasSubstr("Opaque"), HasSubstr("TensorVisitor"))));
  DistributedDataParallel plain(std::make_shared<Returns<Opaque>>(), {.process_group = fake.group});
  EXPECT_NO_THROW(plain->forward(torch::ones({1, 2})));
}

TEST(AnyPyTree, HasOtherTensorsInACopyOnly) {
  const auto doubled = [](const AnyPyTree& value) {
    auto tensors = value.tensors();
    for (auto& tensor : tensors) tensor = tensor * 2;
    return value.with_tensors(tensors);
  };
  const AnyPyTree state = State{number(1), number(2), 3};
  const auto twice = doubled(state).get<State>();
  EXPECT_EQ(numbers_in(twice), (std::vector<double>{2, 4}));
  EXPECT_EQ(twice.steps, 3);
  EXPECT_EQ(numbers_in(state.tensors()), (std::vector<double>{1, 2}));
  EXPECT_TRUE(AnyPyTree(at::Tensor()).tensors().empty());
  EXPECT_EQ(numbers_in(doubled(State{number(1), at::Tensor()}).get<State>()), std::vector<double>{2});

  const c10::IValue tuple = c10::ivalue::Tuple::create(number(1), 7);
  EXPECT_EQ(numbers_in(doubled(tuple).get<c10::IValue>()), std::vector<double>{2});
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("x", number(1));
  EXPECT_THAT([&] { doubled(c10::IValue(dict)); },
              ThrowsMessage<ArgumentError>(HasSubstr("in a list or dictionary of an IValue")));
  EXPECT_THAT([&] { state.get<at::Tensor>(); },
              ThrowsMessage<ArgumentError>(HasSubstr("State with 2 tensors is not a at::Tensor")));
}

}  // namespace
}  // namespace lockstep
