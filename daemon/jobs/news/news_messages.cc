#include "daemon/jobs/news/news_messages.h"

#include <cstddef>
#include <iterator>
#include <utility>
#include <variant>

namespace terrace {
namespace {

constexpr size_t kMostEntries = 4096;
// Of groups, in a message.
constexpr size_t kMostPins = 1 << 20;

size_t PinsOf(const ReadyGroup& group) {
  return group.recalls.size() + (group.grants.ok() ? group.grants->size() : 0);
}

// How many of the groups one message has room for, the first one always.
size_t FirstGroups(const std::vector<ReadyGroup>& groups) {
  size_t pins = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    pins += PinsOf(groups[i]);
    if (i == kMostEntries || (i > 0 && pins > kMostPins)) return i;
  }
  return groups.size();
}

template <typename News>
size_t PinsOf(const News& news) {
  size_t pins = 0;
  if constexpr (requires { news.groups; }) {
    for (const ReadyGroup& each : news.groups) pins += PinsOf(each);
  }
  return pins;
}

}  // namespace

template <typename News>
void NewsMessages::AddFirstOf(News& news) {
  if constexpr (requires { news.groups; }) {
    while (true) {
      const size_t count = FirstGroups(news.groups);
      if (count == news.groups.size()) return;
      News first;
      first.queue = news.queue;
      const auto middle = news.groups.begin() + static_cast<ptrdiff_t>(count);
      first.groups.assign(std::make_move_iterator(news.groups.begin()),
                          std::make_move_iterator(middle));
      news.groups.erase(news.groups.begin(), middle);
      pins_ = PinsOf(first);
      messages_.emplace_back().entries.push_back(std::move(first));
    }
  }
}

void NewsMessages::Add(JobNewsEntry entry) {
  std::visit([this](auto& news) { AddFirstOf(news); }, entry);
  AddWhole(std::move(entry));
}

void NewsMessages::AddWhole(JobNewsEntry entry) {
  const size_t pins =
      std::visit([](const auto& news) { return PinsOf(news); }, entry);
  pins_ += pins;
  if (messages_.empty() || messages_.back().entries.size() >= kMostEntries ||
      pins_ > kMostPins) {
    messages_.emplace_back();
    pins_ = pins;
  }
  messages_.back().entries.push_back(std::move(entry));
}

}  // namespace terrace
