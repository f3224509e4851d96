"""Latent Dirichlet allocation finds the topics that the documents were drawn from."""


def test_topics_are_found_and_predict_new_documents(run_model, number):
    report = run_model("lda", "--steps", 2500)
    # By chance none is found: two bars that are not the same have a distance of 0.8 or 1.
    assert number("topics: ", report) >= 8
    truth, model = number("truth: ", report), number("model: ", report)
    # The README states -2.83 against -2.74; frequencies of words alone give -3.22. The noise of
    # 25 000 words is 0.01.
    assert number("frequency of words: ", report) + 0.2 < model < truth
