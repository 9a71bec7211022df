// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <random>

#include <lockstep/serialize/value.h>

#include "base/throw_error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMissing = static_cast<std::size_t>(-1);
// Below this many items a search from the front is quicker than an index.
constexpr std::size_t kUnindexed = 16;

// Another one in each process, so that no file can have keys that all fall together.
std::size_t process_seed() {
  static const std::size_t seed =
      std::random_device()() | (static_cast<std::size_t>(std::random_device()()) << 32);
  return seed;
}

std::size_t scattered(std::size_t hash) {
  hash += process_seed();
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ULL;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebULL;
  return hash ^ (hash >> 31);
}

std::size_t mix(std::size_t seed, std::size_t value) {
  return seed ^ (value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2));
}

// A bool, an int, or a float without a fraction, which Python takes for one key.
std::optional<std::int64_t> as_whole_number(const Value& key) {
  if (key.is<bool>() || key.is<std::int64_t>()) return key.as_int();
  const auto* real = key.get_if<double>();
  constexpr double limit = 9.2e18;
  if (real == nullptr || std::abs(*real) > limit || std::trunc(*real) != *real) return std::nullopt;
  return static_cast<std::int64_t>(*real);
}

std::size_t hash_of(const Value& key);

// Hashes a key that is no whole number.
struct Hash {
  std::size_t operator()(None) const { return 1; }
  std::size_t operator()(const BigInteger& value) const { return std::hash<std::string>()(value.bytes); }
  std::size_t operator()(double value) const { return std::isnan(value) ? 3 : std::hash<double>()(value); }
  std::size_t operator()(const std::complex<double>& value) const {
    return mix(std::hash<double>()(value.real()), std::hash<double>()(value.imag()));
  }
  std::size_t operator()(const std::string& value) const { return std::hash<std::string>()(value); }
  std::size_t operator()(const Bytes& value) const { return std::hash<std::string>()(value.data) + 1; }
  std::size_t operator()(const Tuple& value) const {
    std::size_t seed = 2;
    for (const auto& item : value.items) seed = mix(seed, hash_of(item));
    return seed;
  }
  std::size_t operator()(const Size& value) const {
    std::size_t seed = 2;
    for (const auto size : value.sizes) seed = mix(seed, std::hash<std::int64_t>()(size));
    return seed;
  }
  std::size_t operator()(at::ScalarType value) const { return static_cast<std::size_t>(value) + 101; }
  std::size_t operator()(const at::Device& value) const { return std::hash<at::Device>()(value); }
  std::size_t operator()(at::Layout value) const { return static_cast<std::size_t>(value) + 211; }
  template <typename Other>
  std::size_t operator()(const Other& /*value*/) const {
    throw CheckpointError(
        "a dict cannot have tensors, lists, sets or dicts as keys: use strings, numbers or tuples of them");
  }
};

std::size_t hash_of(const Value& key) {
  if (const auto number = as_whole_number(key)) return scattered(static_cast<std::size_t>(*number));
  return scattered(std::visit(Hash{}, key.variant()));
}

bool same_key(const Value& left, const Value& right) {
  const auto left_number = as_whole_number(left);
  const auto right_number = as_whole_number(right);
  if (left_number || right_number) return left_number == right_number;
  if (left.is<Tuple>() && right.is<Tuple>())
    return std::ranges::equal(left.as_items(), right.as_items(), same_key);
  // NaN is one key, as one NaN object is in Python.
  const auto* left_real = left.get_if<double>();
  const auto* right_real = right.get_if<double>();
  if (left_real != nullptr && right_real != nullptr)
    return *left_real == *right_real || (std::isnan(*left_real) && std::isnan(*right_real));
  return equal(left, right);
}

}  // namespace

Dict::Dict() = default;
Dict::Dict(DictKind kind) : kind_(kind) {}
Dict::Dict(std::initializer_list<Item> items, DictKind kind) : kind_(kind) {
  for (const auto& item : items) set(item.key, item.value);
}
Dict::Dict(const Dict& other) = default;
Dict::Dict(Dict&& other) noexcept = default;
Dict& Dict::operator=(const Dict& other) = default;
Dict& Dict::operator=(Dict&& other) noexcept = default;
Dict::~Dict() = default;

std::size_t Dict::size() const { return items_.size(); }
const Dict::Item* Dict::begin() const { return items_.data(); }
const Dict::Item* Dict::end() const { return items_.data() + items_.size(); }
void Dict::reserve(std::size_t count) { items_.reserve(count); }

std::size_t Dict::position(const Value& key) const {
  const auto hash = hash_of(key);
  if (index_.empty()) {
    const auto found =
        std::ranges::find_if(items_, [&](const Item& item) { return same_key(item.key, key); });
    return found == items_.end() ? kMissing : static_cast<std::size_t>(found - items_.begin());
  }
  const auto [first, last] = index_.equal_range(hash);
  for (auto entry = first; entry != last; ++entry) {
    if (same_key(items_[entry->second].key, key)) return entry->second;
  }
  return kMissing;
}

const Value* Dict::find(const Value& key) const {
  const auto place = position(key);
  return place == kMissing ? nullptr : &items_[place].value;
}

Value* Dict::find(const Value& key) { return const_cast<Value*>(std::as_const(*this).find(key)); }

const Value& Dict::at(const Value& key) const {
  if (const auto* value = find(key)) return *value;
  List keys;
  for (std::size_t i = 0; i < std::min<std::size_t>(items_.size(), 10); ++i)
    keys.items.push_back(items_[i].key);
  throw_error<CheckpointError>("there is no key {} in this dict of {} keys: {}{}", repr(key, 100),
                               items_.size(), repr(Value(keys), 300), items_.size() > 10 ? " ..." : "");
}

Value& Dict::at(const Value& key) { return const_cast<Value&>(std::as_const(*this).at(key)); }

void Dict::index_from(std::size_t first) {
  for (auto i = first; i < items_.size(); ++i) index_.emplace(hash_of(items_[i].key), i);
}

void Dict::set(Value key, Value value) {
  const auto place = position(key);
  if (place != kMissing) {
    items_[place].value = std::move(value);
    return;
  }
  items_.push_back({std::move(key), std::move(value)});
  if (!index_.empty()) {
    index_from(items_.size() - 1);
  } else if (items_.size() > kUnindexed) {
    index_from(0);
  }
}

Value& Dict::operator[](const Value& key) {
  if (auto* value = find(key)) return *value;
  set(key, None{});
  return items_.back().value;
}

bool Dict::erase(const Value& key) {
  const auto place = position(key);
  if (place == kMissing) return false;
  items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(place));
  const bool indexed = !index_.empty();
  index_.clear();
  if (indexed) index_from(0);
  return true;
}

const Dict& Dict::attributes() const {
  static const Dict none;
  return attributes_ ? *attributes_ : none;
}

void Dict::set_attributes(Dict attributes) {
  attributes_ = attributes.empty() ? nullptr : std::make_shared<const Dict>(std::move(attributes));
}

Dict ordered_dict(std::initializer_list<Dict::Item> items) { return {items, DictKind::ordered_dict}; }

}  // namespace lockstep
