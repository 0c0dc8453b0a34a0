// Many independent pieces of work, shared by a few threads.
#pragma once

#include <cstddef>
#include <functional>

namespace looseleaf::dirty_tracker {

constexpr unsigned kThreadsMax = 64;

// Throws InvalidInput unless 1 <= threads <= kThreadsMax.
void check_threads(unsigned threads);

// Calls work(i) once for each i < count, by up to `threads` threads, this one included; by fewer when there is less work
// or the system refuses a thread. `poll`, if given, is called on this thread about every 3 ms; when it or a work throws,
// no further work begins, and the first exception leaves this function after every thread has ended.
void parallel_for(std::size_t count, unsigned threads, const std::function<void(std::size_t)>& work,
                  const std::function<void()>& poll = nullptr);

}  // namespace looseleaf::dirty_tracker
