/* A ring of puts (NVSHMEM, MPI_Put, CUDA IPC): rank r writes into a buffer of rank r + 1, then raises its signal.
   A credit of rank r + 1 says that the buffer is free.
   Property: every rank computes at step t with the K,V of owner(t), from the begin of the compute to its end, and ends.

   Mirrors no file: no transport of the library puts. It shows what such a transport would have to wait for.

   Left out: K,V that stop early, and the numbers. Assumed: memory that was written before a signal is visible after it.

   Mistakes: CREDIT 0, none; 1, when the compute has ended, though the own put out of that buffer may not have ended.
   NO_ORDER: the signal may arrive before the data. */
#include "topology.pml"
#ifndef CREDIT
#define CREDIT 2
#endif

typedef Buffers { byte holds[2] }
Buffers at[N];
byte arrived[N];       /* signal: parcels that have arrived at r */
byte credit[N];        /* puts into NEXT(r) that r may begin, in all so far */
bool putting[N];       /* the put of r is under way */
byte put_from[N];
byte ended;

proctype Rank(byte r) {
  byte t = 0;
  do
  :: true ->
     (arrived[r] >= t);
     if
     :: t < N - 1 ->
#if CREDIT > 0
        (credit[r] > t);
#endif
        (!putting[r]);
        atomic { put_from[r] = t % 2; putting[r] = true }
     :: else
     fi;
     assert(at[r].holds[t % 2] == OWNER(r, t));   /* the compute begins */
     assert(at[r].holds[t % 2] == OWNER(r, t));   /* the compute ends */
     if :: t == N - 1 -> break :: else fi;
#if CREDIT == 2
     (!putting[r]);
#endif
     credit[PREV(r)]++;
     t++
  od;
  t = 0; ended++
}

/* The network, or a copy engine. */
proctype Put(byte r) {
  byte value;
  end: do
  :: putting[r] ->
#ifdef NO_ORDER
     if
     :: arrived[NEXT(r)]++; value = at[r].holds[put_from[r]]; at[NEXT(r)].holds[1 - put_from[r]] = value
     :: value = at[r].holds[put_from[r]]; at[NEXT(r)].holds[1 - put_from[r]] = value; arrived[NEXT(r)]++
     fi;
#else
     value = at[r].holds[put_from[r]];
     at[NEXT(r)].holds[1 - put_from[r]] = value;
     arrived[NEXT(r)]++;
#endif
     atomic { value = 0; putting[r] = false }
  od
}

init {
  byte i = 0;
  atomic {
    choose_hops();
    do :: i < N -> at[i].holds[0] = i; at[i].holds[1] = NONE; credit[i] = 1; run Rank(i); run Put(i); i++ :: else -> break od;
    i = 0
  }
  (ended == N)
}
