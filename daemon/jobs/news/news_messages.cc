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

// How many of the groups one message has room for, the first one always.
size_t FirstGroups(const std::vector<ReadyGroup>& groups) {
  size_t pins = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto& grants = groups[i].grants;
    pins += groups[i].recalls.size() + (grants.ok() ? grants->size() : 0);
    if (i == kMostEntries || (i > 0 && pins > kMostPins)) return i;
  }
  return groups.size();
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
      messages_.emplace_back().entries.push_back(std::move(first));
    }
  }
}

void NewsMessages::Add(JobNewsEntry entry) {
  std::visit([this](auto& news) { AddFirstOf(news); }, entry);
  AddWhole(std::move(entry));
}

void NewsMessages::AddWhole(JobNewsEntry entry) {
  if (messages_.empty() || messages_.back().entries.size() >= kMostEntries) {
    messages_.emplace_back();
  }
  messages_.back().entries.push_back(std::move(entry));
}

}  // namespace terrace
