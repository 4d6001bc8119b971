"""Mail with retries and dead letters.

foqs worker examples.mail:app
python -m examples.mail ada@example.org "Your order"
foqs dead list mail.dlq                                 # what no mail server took
"""

import os
import smtplib
import sys
from collections.abc import Iterator
from email.message import EmailMessage

from foqs import App, Depends, Reject

app = App.from_env()


def smtp() -> Iterator[smtplib.SMTP]:
    with smtplib.SMTP(os.environ.get("SMTP_HOST", "127.0.0.1"), int(os.environ.get("SMTP_PORT", "25"))) as connection:
        yield connection


@app.task(topic="mail", max_attempts=5, time_limit=60)
def send_mail(to: str, subject: str, text: str = "", connection: smtplib.SMTP = Depends(smtp)) -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@example.org", to, subject
    message.set_content(text)
    try:
        connection.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        if all(code >= 500 for code, _ in error.recipients.values()):
            raise Reject(f"{to} is refused") from error  # no later attempt helps: a dead letter at once
        raise


if __name__ == "__main__":
    _, address, title = sys.argv
    print(send_mail.enqueue(address, title))
